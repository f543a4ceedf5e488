"""Retention (Sun et al. 2023): a recurrent state with one fixed decay per head."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, RecurrenceInputs, Recurrent
from cab import UserError, register_attention
from cab.attention import CommonArguments


@register_attention("retention", patterns="CS", complexity="n", paper="Sun et al. 2023")
class RetentionAttention(Recurrent):
    """Compute o_t = q_t S_t with S_t = gamma_h S_{t-1} + k_t (x) v_t and gamma_h = 1 - 2^(-5 - h).

    RetNet, Eq. 5 to 8. q / sqrt(K) and k are rotated by their position: pair i of K / 2 by t 10000^(-i / (K/2 - 1)), as
    in torchscale. (Pairs are the features i and i + K/2; torchscale pairs neighbors.) o_t is divided by the square root
    of the sum of its decays, gamma_h^0 to gamma_h^t. An RMS norm per head without weights and a gate follow, silu(x
    W_g) * norm(o), and then ``out_proj``.

    The initialization is torchscale's: Xavier uniform with gain 2^-2.5 for q, k, v and the gate, and 2^-1 for
    ``out_proj``. torchscale's parallel form also divides each score by the sum of the absolute scores of its row, at
    least 1. The norm cancels this factor up to its epsilon; the recurrent form of torchscale does not have it.

    Args:
        value_expansion: width of the values relative to the keys. The paper uses 2 and narrows the feed-forward
            layers to compensate.
        conv_size: kernel size of short convolutions of q, k and v, followed by silu; 0, as published, for none.
    """

    norm_eps = 1e-6
    parameter_budget = 0.25  # 8 D^2 per layer, as published: 23.1% of GPT-2

    def __init__(self, *, value_expansion: float = 2.0, conv_size: int = 0, **common: Unpack[CommonArguments]) -> None:
        super().__init__(
            value_expansion=value_expansion,
            gate=True,
            conv_size=conv_size,
            gain=2 ** (-2.5),
            out_gain=2 ** (-1),
            norm_has_weight=False,
            **common,
        )
        if self.key_width % 2:
            raise UserError(f"embed_dim / num_heads must be even for rotary embeddings, got {self.key_width}")

    def recurrence_inputs(
        self, query: Tensor, key: Tensor, value: Tensor, _extras: Extras, position: Tensor
    ) -> RecurrenceInputs:
        """Rotate queries and keys and scale the queries; the log decays are [1, H, N]."""
        if self.conv_size:
            query, key, value = F.silu(query), F.silu(key), F.silu(value)
        query, key = (rotate(x, position) for x in (query * self.key_width**-0.5, key))
        heads = torch.arange(self.num_heads, device=query.device, dtype=torch.float64)
        log_decay = torch.log1p(-(2.0 ** (-5.0 - heads))).view(1, -1, 1)
        total = torch.expm1(log_decay * (position[:, None] + 1)) / torch.expm1(log_decay)  # [B or 1, H, N]
        query = query * total.rsqrt().to(query.dtype).unsqueeze(-1)
        return RecurrenceInputs(query, key, value, log_decay.to(query.dtype).expand(1, -1, query.shape[2]))


def rotate(x: Tensor, position: Tensor) -> Tensor:
    """Rotate the features i and i + K/2 of x [B, H, N, K] by position [B or 1, N] times the rate of pair i."""
    pairs = x.shape[-1] // 2
    rates = 1e4 ** -torch.linspace(0, 1, pairs, dtype=torch.float64, device=x.device)
    angle = position[:, None, :, None] * rates
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
