"""RWKV-6, Finch (Peng et al. 2024): decays of each feature from the token, and a bonus for the token itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, Terms, check_positive, xavier_linear
from attentions.bases.token_shift import TokenShift
from attentions.kernels.fla_kernels import Form
from cab import LayerPosition, Pattern, register_attention
from cab.attention import SINGLE_LAYER

MIXED = 5
"""Inputs that are mixed, each in its own way, of a token and the one before it: of decay, k, v, r and gate."""

LARGEST = 7.0
"""A logit beyond which a token forgets all in every type: exp(-exp(7)) is zero."""


@register_attention("rwkv6", patterns="CS", complexity="n", paper="Peng et al. 2024")
class RWKV6Attention(TokenShift):
    """o_t = r_t (S_{t-1} + u k_t (x) v_t), S_t = diag(w_t) S_{t-1} + k_t (x) v_t  (Eagle and Finch, Eq. 14 to 19).

    The input of each of w, k, v, r and the gate g is x_t + (x_{t-1} - x_t) (mu + tanh(y W_1) W_2), with
    y = x_t + (x_{t-1} - x_t) mu_x and mu, W_1, W_2 its own; w = exp(-exp(w_0 + tanh(x W_3) W_4)). Then a layer norm of
    each head, times silu(g), and out_proj. There is no 1/sqrt(K).

    mu, w_0 and u begin as released, by the depth of the layer: later layers look further back. W_1 and W_3 begin at
    zero. Channel mixing, RWKV's feed-forward layer, belongs to the backbone.

    Args:
        mix_rank: width between W_1 and W_2 of each input.
        decay_rank: width between W_3 and W_4.

    Raises:
        ValueError: for ranks below 1.
    """

    parameter_budget = 0.12

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        layer_position: LayerPosition = SINGLE_LAYER,
        mix_rank: int = 32,
        decay_rank: int = 64,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        check_positive(mix_rank=mix_rank, decay_rank=decay_rank)
        last, rest = (
            layer_position.index / max(layer_position.num_layers - 1, 1),
            1 - layer_position.index / layer_position.num_layers,
        )
        place = torch.arange(embed_dim) / embed_dim
        ramp, slow = 1 - place**rest, 1 - place ** (rest / 2)
        self.mix = nn.Parameter(torch.stack([ramp, ramp, ramp - 0.3 * last, slow, slow]))
        self.mix_of_mix = nn.Parameter(ramp.clone())
        self.mix_in = nn.Parameter(torch.zeros(embed_dim, MIXED * mix_rank))
        self.mix_out = nn.Parameter(torch.empty(MIXED, mix_rank, embed_dim).uniform_(-0.01, 0.01))
        place = torch.arange(embed_dim) / max(embed_dim - 1, 1)
        self.decay = nn.Parameter(-6 + 5 * place ** (0.7 + 1.3 * last))
        self.decay_in = nn.Parameter(torch.zeros(embed_dim, decay_rank))
        self.decay_out = nn.Parameter(torch.empty(decay_rank, embed_dim).uniform_(-0.01, 0.01))
        zigzag = 0.1 * ((torch.arange(embed_dim) + 1) % 3 - 1)
        self.bonus = nn.Parameter((last * (1 - place) + zigzag).view(num_heads, 1, self.key_width))
        self.gate_proj = xavier_linear(embed_dim, embed_dim, bias=False)
        self.norm_weight = nn.Parameter(torch.ones(num_heads, 1, self.value_width))
        self.norm_bias = nn.Parameter(torch.zeros(num_heads, 1, self.value_width))

    # --- the token before ---------------------------------------------------------------------------------

    def inputs(self, x: Tensor, before: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Tensor]]:
        """r, k, v [B, H, N, E], and gate and decay [B, N, D], of tokens [B, N, D] and those before them."""
        for_query, for_key, for_value, for_gate, decay = self.mixed_by_spans(x, before)
        return self.project(for_query, for_key, for_value), {"gate": self.gate_proj(for_gate), "decay": decay}

    def mixed(self, x: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        """What r, k, v and the gate are projections of, and the decay; nothing else that is formed here is kept."""
        change = before - x
        shares = torch.tanh((x + change * self.mix_of_mix) @ self.mix_in).unflatten(-1, (MIXED, -1))
        shares = shares.transpose(1, 2) @ self.mix_out  # [B, N, 5, rank] to [B, 5, N, D]
        for_decay, for_key, for_value, for_query, for_gate = (
            x + change * (mix + share) for mix, share in zip(self.mix, shares.unbind(dim=1), strict=True)
        )
        decay = self.decay + torch.tanh(for_decay @ self.decay_in) @ self.decay_out
        return for_query, for_key, for_value, for_gate, decay

    # --- the memory ---------------------------------------------------------------------------------------

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> Terms:
        log_decay = -self.split_heads(extras["decay"]).clamp(max=LARGEST).exp()
        return Terms(query, key, value, log_decay)

    def update(self, terms: Terms, memory: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        """A query reads before its token writes: it is the query of the token before, and the first reads alone."""
        query, key, value, log_decay, _ = terms
        first = query[:, :, :1] @ memory
        later, memory = form(F.pad(query[:, :, 1:], (0, 0, 0, 1)), key, value, log_decay, memory)
        own = (query * self.bonus.to(query.dtype) * key).sum(dim=-1, keepdim=True) * value
        return torch.cat([first, later[:, :, :-1]], dim=2) + own, memory

    def finish(self, output: Tensor, _value: Tensor, extras: Extras) -> Tensor:
        normed = F.layer_norm(output, output.shape[-1:], eps=64e-5)
        normed = normed * self.norm_weight.to(output.dtype) + self.norm_bias.to(output.dtype)
        return normed * F.silu(self.split_heads(extras["gate"]))

    def compute_row(self, query: Tensor, _key: Tensor, _value: Tensor, _draws: Any) -> Tensor:
        """The sum over all pairs of tokens, [n, D] to [n, D]."""
        x = query[None]
        (r, k, v), extras = self.inputs(x, F.pad(x[:, :-1], (0, 0, 1, 0)))
        sums = F.pad(-self.split_heads(extras["decay"]).exp(), (0, 0, 1, 0)).cumsum(dim=2)
        between = (sums[:, :, :-1].unsqueeze(3) - sums[:, :, 1:].unsqueeze(2)).clamp(max=0).exp()  # [1, H, i, j, K]
        products = torch.einsum("bhic,bhjc,bhijc->bhij", r, k, between).tril(-1)
        products = products + ((r * k) @ self.bonus.mT).squeeze(-1).diag_embed()
        return self.out_proj(self.merge_heads(self.finish(products @ v, v, extras)))[0]
