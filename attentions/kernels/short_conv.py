"""A causal convolution over a few positions, one kernel for each feature: what recurrent methods put before q, k, v.

Shapes: B batch, H heads, N tokens, E width of a head, W taps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cab.padding import lengths


class ShortConvolution(nn.Module):
    """y_t = sum_{i < W} w_i * x_{t - W + 1 + i}, elementwise, zeros before the first token.

    Args:
        num_heads, width: of the heads that are convolved.
        size: taps W.
    """

    def __init__(self, num_heads: int, width: int, size: int) -> None:
        super().__init__()
        bound = size**-0.5  # as nn.Conv1d starts
        self.weight = nn.Parameter(torch.empty(size, num_heads, 1, width).uniform_(-bound, bound))

    def init_decode_state(self, batch_size: int, like: Tensor) -> Tensor:
        """The tokens before the first: zeros [B, H, W - 1, E]."""
        size, num_heads, _, width = self.weight.shape
        return like.new_zeros(batch_size, num_heads, size - 1, width)

    def forward(self, x: Tensor, before: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """x [B, H, N, E] after the tokens ``before`` [B, H, W - 1, E] to the same, and the last W - 1 real tokens.

        ``padding`` [B, N] is at the right end of each row.
        """
        length, weight = x.shape[2], self.weight.to(x.dtype)
        seen = torch.cat([before.to(x.dtype), x], dim=2)
        output = seen[:, :, :length] * weight[0]
        for tap in range(1, len(weight)):
            output = torch.addcmul(output, seen[:, :, tap : tap + length], weight[tap])
        if padding is None:
            return output, seen[:, :, length:]
        last = lengths(x, padding).unsqueeze(1) + torch.arange(len(weight) - 1, device=x.device)
        return output, seen.gather(2, last[:, None, :, None].expand_as(before))
