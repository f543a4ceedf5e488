"""Softmax attention (Vaswani et al. 2017), written out and by the flash kernel alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attentions.kernels.numerics import mask_value
from attentions.softmax import PLAIN, VanillaAttention, with_mask
from cab import UserError, register_attention
from cab.claims import Claims


@register_attention("eager", patterns="NS CS NC CC", complexity="n^2", paper="Vaswani et al. 2017")
class EagerAttention(VanillaAttention):
    """Compute softmax(q k^T / sqrt(E)) v (CAB, Eq. 1) with separate operations, which store all N x M weights.

    The same function, options and decoding as ``vanilla``.
    """

    has_own_kernel = True

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
        if is_causal:
            visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
        logits = (query * self.scale) @ key.transpose(2, 3)
        if visible is not None:
            logits = with_mask(logits, visible, float("-inf"))
        return F.dropout(logits.softmax(dim=-1), self.dropout, self.training) @ value


@register_attention("flash", patterns="NS CS NC CC", complexity="n^2", paper="Dao et al. 2022")
class FlashAttention(VanillaAttention):
    """Compute softmax(q k^T / sqrt(E)) v (CAB, Eq. 1) by the fused, tiled kernel, without N x M weights in memory.

    The same function, options and decoding as ``vanilla``, which leaves the kernel to torch.

    Raises:
        ValueError: when called where no flash kernel is: on a CPU with dropout, on CUDA in float32, elsewhere.
    """

    claims = Claims(softmax_limit=PLAIN, float32_devices=("cpu",))
    has_own_kernel = True

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
        if self.weight_dropout and query.device.type == "cpu":
            raise self._no_kernel(query)
        query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
        if query.device.type == "cuda" and visible is not None:
            if visible.shape[2] > 1 or visible.is_floating_point():  # the kernel for CUDA takes no masks
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
            f"dropout {self.dropout}. Use float16 or bfloat16 (autocast) on CUDA, dropout 0 on a CPU, or attention "
            "'vanilla', which computes the same function with any kernel"
        )


def mask_by_coordinate(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Add a coordinate to query and key that masks the keys outside ``visible`` [B, 1, 1, M]."""
    hidden = (~visible).squeeze(2).unsqueeze(-1).to(key.dtype) * mask_value(key.dtype)
    key = torch.cat([key, hidden.expand_as(key[..., :1])], dim=-1)
    return F.pad(query, (0, 1), value=1.0), key, F.pad(value, (0, 1))
