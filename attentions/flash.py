"""FlashAttention (Dao et al. 2022): softmax attention by torch's flash kernel, and by no other."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attentions.kernels.numerics import neg_inf
from attentions.vanilla import VanillaAttention
from cab import UserError, register_attention


@register_attention("flash", patterns="NS CS NC CC", complexity="n^2", paper="Dao et al. 2022")
class FlashAttention(VanillaAttention):
    """Compute softmax(q k^T / sqrt(E)) v (CAB, Eq. 1) by the fused, tiled kernel, without N x M weights in memory.

    The same function, options and decoding as ``vanilla``, which leaves the kernel to torch.

    Raises:
        ValueError: when called where no flash kernel is: on a CPU with dropout, on CUDA in float32, elsewhere.
    """

    float32_devices = ("cpu",)

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
        if self.weight_dropout and query.device.type == "cpu":
            raise self._no_kernel(query)
        if query.device.type == "cuda" and visible is not None:
            if visible.shape[2] > 1:  # a prompt read in pieces; the kernel for CUDA takes no masks
                return super().kernel(query, key, value, visible, is_causal)
            query, key, value = mask_by_coordinate(query, key, value, visible)
            visible = None
        try:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                output = F.scaled_dot_product_attention(
                    query, key, value, visible, self.weight_dropout, is_causal, scale=self.scale
                )
        except RuntimeError as error:
            if "No available kernel" not in str(error):  # out of memory, for one
                raise
            raise self._no_kernel(query) from error
        return output[..., : self.head_dim]

    def _no_kernel(self, query: Tensor) -> UserError:
        return UserError(
            f"no flash kernel for {query.dtype} on {query.device.type} with head width {self.head_dim} and "
            f"dropout {self.dropout}: use float16 or bfloat16 (autocast) on CUDA, dropout 0 on a CPU, "
            "or attention 'vanilla', which computes the same function with any kernel"
        )


def mask_by_coordinate(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Add a coordinate to query and key that masks the keys outside ``visible`` [B, 1, 1, M]."""
    hidden = (~visible).squeeze(2).unsqueeze(-1).to(key.dtype) * neg_inf(key.dtype)
    key = torch.cat([key, hidden.expand_as(key[..., :1])], dim=-1)
    return F.pad(query, (0, 1), value=1.0), key, F.pad(value, (0, 1))
