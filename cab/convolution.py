"""Short causal convolutions of the heads of an attention, and their decoding state.

Shapes: B batch, H heads, N tokens, E width of a head, W kernel size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cab.errors import UserError
from cab.flash_linear_attention import call, fla_backend
from cab.kernels import Operation
from cab.padding import lengths


class ShortConvolution(nn.Module):
    """Compute y_t = b + sum_{i < W} w_i * x_{t - W + 1 + i} elementwise, with zeros before the first token.

    Initialized as ``nn.Conv1d``.

    Args:
        num_heads: heads H.
        width: width E per head.
        size: kernel size W.
        bias: whether to add b.
        activation: whether silu follows.
    """

    def __init__(self, num_heads: int, width: int, size: int, *, bias: bool = False, activation: bool = False) -> None:
        super().__init__()
        self.activation = activation
        bound = size**-0.5
        self.weight = nn.Parameter(torch.empty(size, num_heads, 1, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_heads, 1, width).uniform_(-bound, bound)) if bias else None

    def init_decode_state(self, batch_size: int, like: Tensor) -> Tensor:
        """Return the inputs before the first token: zeros [B, H, W - 1, E]."""
        size, num_heads, _, width = self.weight.shape
        return like.new_zeros(batch_size, num_heads, size - 1, width)

    def forward(self, x: Tensor, before: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Convolve x [B, H, N, E], preceded by ``before`` [B, H, W - 1, E].

        Args:
            x: [B, H, N, E].
            before: the W - 1 inputs before ``x``.
            padding: bool [B, N], True at the right end of each row, or None.

        Returns:
            The outputs, and the last W - 1 inputs that are not padding.
        """
        return convolution(x, before, self.weight, self.bias, self.activation), last_inputs(x, before, padding)

    def reference(self, x: Tensor) -> Tensor:
        """Convolve x [..., H, N, E] by torch's convolution of one channel per feature."""
        taps = self.weight.permute(1, 3, 2, 0).flatten(0, 1)  # [H E, 1, W]
        bias = None if self.bias is None else self.bias.flatten()
        flat = F.pad(x.mT.flatten(-3, -2), (len(self.weight) - 1, 0))
        output = F.conv1d(flat, taps, bias, groups=len(taps)).unflatten(-2, (x.shape[-3], -1)).mT
        return F.silu(output) if self.activation else output


def last_inputs(x: Tensor, before: Tensor, padding: Tensor | None) -> Tensor:
    """Return the last W - 1 inputs of ``before`` [B, H, W - 1, E] and x [B, H, N, E] that are not padding."""
    count = before.shape[2]
    if padding is None:
        return torch.cat([before[:, :, x.shape[2] :], x[:, :, -count:].to(before.dtype)], dim=2)
    index = (lengths(x, padding).unsqueeze(1) + torch.arange(-count, 0, device=x.device))[:, None, :, None]
    index = index.expand_as(before)
    old, new = before.gather(2, (index + count).clamp(max=count - 1)), x.gather(2, index.clamp(min=0))
    return torch.where(index < 0, old, new.to(before.dtype))


def _by_taps(x: Tensor, before: Tensor, weight: Tensor, bias: Tensor | None, activation: bool) -> Tensor:
    """Convolve x [B, H, N, E], preceded by ``before`` [B, H, W - 1, E], with ``weight`` [W, H, 1, E]; apply silu."""
    length, weight = x.shape[2], weight.to(x.dtype)
    seen = torch.cat([before.to(x.dtype), x], dim=2)
    output = seen[:, :, :length] * weight[0]
    for tap in range(1, len(weight)):
        output = torch.addcmul(output, seen[:, :, tap : tap + length], weight[tap])
    if bias is not None:
        output = output + bias.to(x.dtype)
    return F.silu(output) if activation else output


def _by_fla(x: Tensor, before: Tensor, weight: Tensor, bias: Tensor | None, activation: bool) -> Tensor:
    """Convolve all features of a token [B, N, H E] at once."""

    def flat(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)

    initial = F.pad(flat(before).mT, (1, 0))  # of W inputs, the first is not read
    taps = weight.flatten(1).mT
    options = {"initial_state": initial, "activation": "silu" if activation else None}
    bias = None if bias is None else bias.flatten()
    output, _ = call("modules.causal_conv1d.ops.causal_conv1d", flat(x), taps, bias, **options)
    result: Tensor = output.unflatten(-1, (x.shape[1], -1)).transpose(1, 2)
    return result


convolution = Operation("short_convolution", _by_taps, fla_backend(_by_fla))


class HeadConvolutions(nn.ModuleDict):
    """The short convolutions of projected queries, keys and values, each with its own filters."""

    names = ("query", "key", "value")

    @classmethod
    def of(
        cls, shapes: Mapping[str, tuple[int, int]], size: int, *, bias: bool = False, activation: bool = False
    ) -> Self:
        """Create convolutions of kernel size ``size`` for the ``names`` of heads that have ``shapes`` (H, E)."""
        if size < 2:
            raise UserError(f"short_convolution must be 0 for no convolution, or at least 2, got {size}")
        return cls(
            {name: ShortConvolution(*shape, size, bias=bias, activation=activation) for name, shape in shapes.items()}
        )

    def init_decode_state(self, batch_size: int, like: Tensor) -> dict[str, Tensor]:
        """Return the state before the first token: the last W - 1 inputs of each convolution."""
        return {f"past_{name}": each.init_decode_state(batch_size, like) for name, each in self._by_name().items()}

    def forward(
        self, heads: Sequence[Tensor], state: Mapping[str, Tensor], padding: Tensor | None
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Convolve query, key and value [B, H, N, E] after ``state``; return them and the state after them."""
        outputs, past = dict(zip(self.names, heads, strict=True)), {}
        for name, each in self._by_name().items():
            outputs[name], past[f"past_{name}"] = each(outputs[name], state[f"past_{name}"], padding)
        return list(outputs.values()), past

    def reference(self, heads: Sequence[Tensor]) -> list[Tensor]:
        """Convolve query, key and value [..., H, n, E] of whole sequences."""
        by_name = self._by_name()
        return [by_name[name].reference(x) if name in by_name else x for name, x in zip(self.names, heads, strict=True)]

    def _by_name(self) -> dict[str, ShortConvolution]:
        return {name: each for name, each in self.items() if isinstance(each, ShortConvolution)}
