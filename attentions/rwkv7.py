"""RWKV-7, Goose (Peng et al. 2025): a delta rule whose decays and learning rates are of each feature and token."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, Terms, check_positive
from attentions.bases.token_shift import TokenShift
from attentions.kernels import fla_kernels
from attentions.kernels.feature_maps import unit
from attentions.kernels.fla_kernels import Form
from attentions.kernels.generalized_delta_rule import generalized_delta_rule
from cab import LayerPosition, Pattern, register_attention
from cab.attention import SINGLE_LAYER

FASTEST = math.exp(-0.5)
"""The largest rate of decay: from token to token a feature keeps exp(-exp(-1/2)) = 0.545 or more of what it holds."""

NORM_EPS = 64e-5


@register_attention("rwkv7", patterns="CS", complexity="n", paper="Peng et al. 2025")
class RWKV7Attention(TokenShift):
    """S_t = S_{t-1} (diag(w_t) - z_t^T (a_t * z_t)) + v_t^T k~_t, o_t = r_t S_t^T  (Goose, section 4.1).

    Each of r, w, k, v, a and the gate g comes from its own x_t + (x_{t-1} - x_t) mu. With z = k xi / |k xi| of each
    head what is removed, a = sigmoid(a_0 + x A_1 A_2) the learning rate of each feature, k~ = k (1 + (a - 1) alpha)
    what is written, w = exp(-exp(-1/2) sigmoid(w_0 + tanh(x W_1) W_2)), and g = sigmoid(x G_1) G_2: a layer norm of
    each head, plus (r (rho k~)^T) v, times g, and out_proj. There is no 1/sqrt(K).

    mu, xi, alpha, rho, w_0, a_0 and the norm's weight begin as released, by the depth of the layer; W_1, A_1 and G_1 at
    zero. Left out is what a slot does not have: values mixed with those of the network's first layer. Channel mixing,
    RWKV's feed-forward layer, belongs to the backbone.

    Args:
        decay_rank, rate_rank, gate_rank: widths between the two maps of w, a and g.

    Raises:
        ValueError: for ranks below 1.
    """

    forms = (generalized_delta_rule, fla_kernels.generalized_delta_rule)

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        layer_position: LayerPosition = SINGLE_LAYER,
        decay_rank: int = 64,
        rate_rank: int = 64,
        gate_rank: int = 128,
    ) -> None:
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        check_positive(decay_rank=decay_rank, rate_rank=rate_rank, gate_rank=gate_rank)
        late, rest = (
            layer_position.index / max(layer_position.num_layers - 1, 1),
            1 - layer_position.index / layer_position.num_layers,
        )
        place = torch.arange(embed_dim) / embed_dim
        powers = torch.tensor([0.2, 0.9, 0.7, 0.7, 0.9, 0.2])  # of r, w, k, v, a, g
        self.mix = nn.Parameter(1 - place ** (powers * rest).unsqueeze(1))
        place = torch.arange(embed_dim) / max(embed_dim - 1, 1)
        within = torch.linspace(-1, 1, self.key_width).repeat(num_heads)
        zigzag = within * within.abs()
        self.decay = nn.Parameter(-5.5 + 6 * place ** (1 + late**0.3) + 2.5 * zigzag)
        self.rate = nn.Parameter(-0.39 + 0.3 * zigzag + 0.4 * place)
        self.decay_in, self.decay_out = low_rank(embed_dim, decay_rank)
        self.rate_in, self.rate_out = low_rank(embed_dim, rate_rank)
        self.gate_in, self.gate_out = low_rank(embed_dim, gate_rank)
        of_head = (num_heads, 1, self.key_width)
        self.removed = nn.Parameter((0.76 - 0.1 * place).view(of_head))
        self.replaced = nn.Parameter(torch.full(of_head, 1.02))
        self.bonus = nn.Parameter(torch.full(of_head, -0.04))
        self.norm_weight = nn.Parameter(torch.full(of_head, (1 - rest + 1 / layer_position.num_layers) ** 0.7))
        self.norm_bias = nn.Parameter(torch.zeros(of_head))

    # --- the token before ---------------------------------------------------------------------------------

    def inputs(self, x: Tensor, before: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Tensor]]:
        """r, k, v [B, H, N, E], and logits of decay and learning rate, and gate [B, N, D]."""
        for_query, for_key, for_value, decay, rate, gate = self.mixed_by_spans(x, before)
        return self.project(for_query, for_key, for_value), {"decay": decay, "rate": rate, "gate": gate}

    def mixed(self, x: Tensor, before: Tensor) -> tuple[Tensor, ...]:
        """What r, k and v are projections of, and the extras."""
        for_query, for_decay, for_key, for_value, for_rate, for_gate = (x + (before - x) * mix for mix in self.mix)
        decay = self.decay + torch.tanh(for_decay @ self.decay_in) @ self.decay_out
        rate = self.rate + for_rate @ self.rate_in @ self.rate_out
        gate = torch.sigmoid(for_gate @ self.gate_in) @ self.gate_out
        return for_query, for_key, for_value, decay, rate, gate

    # --- the memory ---------------------------------------------------------------------------------------

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> Terms:
        """The key is k itself, of which follow what is removed and what is written."""
        log_decay = -FASTEST * self.split_heads(extras["decay"]).sigmoid()
        return Terms(query, key, value, log_decay, strength=self.split_heads(extras["rate"]).sigmoid())

    def update(self, terms: Terms, memory: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        """The norm of what is read, plus the bonus of the token itself, and S after the last."""
        query, key, value, log_decay, rate = terms
        assert log_decay is not None
        assert rate is not None
        removed, replaced, bonus = (x.to(key.dtype) for x in (self.removed, self.replaced, self.bonus))
        removal = unit(key * removed)
        key = key * (1 + (rate - 1) * replaced)
        output, memory = form(query, key, value, removal, rate * removal, log_decay, memory)
        return self.normalise(output) + (query * bonus * key).sum(dim=-1, keepdim=True) * value, memory

    def normalise(self, x: Tensor) -> Tensor:
        normed = F.layer_norm(x, x.shape[-1:], eps=NORM_EPS)
        return normed * self.norm_weight.to(x.dtype) + self.norm_bias.to(x.dtype)

    def finish(self, output: Tensor, _value: Tensor, extras: Extras) -> Tensor:
        return output * self.split_heads(extras["gate"])

    def compute_row(self, query: Tensor, _key: Tensor, _value: Tensor, _draws: Any) -> Tensor:
        """Token by token, with S [H, V, K] as in the paper, [n, D] to [n, D]."""
        x = query[None]
        heads, extras = self.inputs(x, F.pad(x[:, :-1], (0, 0, 1, 0)))
        r, k, v = (y[0].transpose(0, 1).unsqueeze(2) for y in heads)  # [n, H, 1, E], rows
        w, a = (self.split_heads(extras[name])[0].sigmoid().transpose(0, 1) for name in ("decay", "rate"))
        w, a = (-FASTEST * w).exp(), a.unsqueeze(2)
        z = k * self.removed
        z = z / (z.square().sum(dim=-1, keepdim=True) + 1e-6).sqrt()
        k = k * (1 - self.replaced + a * self.replaced)
        memory, outputs = torch.zeros_like(v[0].mT @ k[0]), []
        for t in range(len(query)):
            memory = memory @ (w[t].diag_embed() - z[t].mT @ (a[t] * z[t])) + v[t].mT @ k[t]
            own = (r[t] * self.bonus * k[t]).sum(dim=-1, keepdim=True) * v[t]
            outputs.append(self.normalise(r[t] @ memory.mT) + own)
        output = torch.stack(outputs).transpose(0, 2)  # [1, H, n, V]
        return self.out_proj(self.merge_heads(self.finish(output, v, extras)))[0]


def low_rank(width: int, rank: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Two maps that begin with the product zero, [D, rank] and [rank, D]."""
    first, second = torch.zeros(width, rank), torch.empty(rank, width)
    nn.init.orthogonal_(second, gain=0.1 * max(rank / width, 1) ** 0.5)
    return nn.Parameter(first), nn.Parameter(second)
