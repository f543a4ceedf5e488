"""Retention (Sun et al. 2023): a memory with one fixed rate of forgetting for each head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, Recurrent, Terms
from cab import Pattern, UserError, register_attention


@register_attention("retention", patterns="CS", complexity="n", paper="Sun et al. 2023")
class RetentionAttention(Recurrent):
    """o_t = q_t S_t, S_t = gamma_h S_{t-1} + k_t (x) v_t, gamma_h = 1 - 2^(-5 - h)  (RetNet, Eq. 5 to 8).

    q / sqrt(K) and k are rotated by their position: pair i of K / 2 by t 10000^(-i / (K/2 - 1)),
    as released (features i and i + K/2 here, where the release takes neighbours). Then an
    RMS norm of each head and a gate: silu(x W_g) * norm(o), and out_proj. What the paper divides scores by cancels in
    the norm. The released norm has no weight; here it has one, as in later code.

    Args:
        value_expansion: width of the values relative to the keys; 2 as published (whose feed-forward layers are
            narrower in turn).
        conv_size: taps of short convolutions with silu before q, k and v; none as published.

    Raises:
        ValueError: for an odd width of a head, or options that are not positive.
    """

    parameter_budget = 0.35  # values and gate twice as wide: 8 D^2 a layer

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        value_expansion: float = 2.0,
        conv_size: int = 0,
    ) -> None:
        super().__init__(
            pattern=pattern,
            embed_dim=embed_dim,
            num_heads=num_heads,
            dropout=dropout,
            value_expansion=value_expansion,
            gate=True,
            conv_size=conv_size,
        )
        if self.key_width % 2:
            raise UserError(
                f"retention rotates pairs of features: embed_dim / num_heads must be even, not {self.key_width}"
            )

    def terms(self, query: Tensor, key: Tensor, value: Tensor, _extras: Extras, position: Tensor) -> Terms:
        if self.conv_size:
            query, key, value = F.silu(query), F.silu(key), F.silu(value)
        query, key = (rotate(x, position) for x in (query * self.key_width**-0.5, key))
        heads = torch.arange(self.num_heads, device=query.device, dtype=query.dtype)
        log_decay = torch.log1p(-(2.0 ** (-5.0 - heads)))
        return Terms(query, key, value, log_decay.view(1, -1, 1).expand(1, -1, query.shape[2]))


def rotate(x: Tensor, position: Tensor) -> Tensor:
    """Features i and i + K/2 of x [B, H, N, K] turned by position [B, N] times the rate of pair i."""
    pairs = x.shape[-1] // 2
    rates = 1e4 ** -torch.linspace(0, 1, pairs, dtype=torch.float64, device=x.device)
    angle = position[:, None, :, None] * rates
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
