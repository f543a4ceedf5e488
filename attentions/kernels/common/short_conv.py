"""Causal depthwise convolution over a few positions, applied to q, k and v of recurrent attentions.

Shapes: B batch, H heads, N tokens, E width per head, W kernel size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cab.padding import lengths


class ShortConvolution(nn.Module):
    """Compute y_t = b + sum_{i < W} w_i * x_{t - W + 1 + i} elementwise, with zeros before the first token.

    Initialized as ``nn.Conv1d``.

    Args:
        num_heads: heads H.
        width: width E per head.
        size: kernel size W.
        bias: whether to add b.
    """

    def __init__(self, num_heads: int, width: int, size: int, *, bias: bool = False) -> None:
        super().__init__()
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
        length, weight = x.shape[2], self.weight.to(x.dtype)
        seen = torch.cat([before.to(x.dtype), x], dim=2)
        output = seen[:, :, :length] * weight[0]
        for tap in range(1, len(weight)):
            output = torch.addcmul(output, seen[:, :, tap : tap + length], weight[tap])
        if self.bias is not None:
            output = output + self.bias.to(x.dtype)
        if padding is None:
            return output, seen[:, :, length:]
        last = lengths(x, padding).unsqueeze(1) + torch.arange(len(weight) - 1, device=x.device)
        return output, seen.gather(2, last[:, None, :, None].expand_as(before))
