"""RWKV-6, Eagle and Finch (Peng et al. 2024), and RWKV-7, Goose (Peng et al. 2025): recurrences with token shift."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.bases.recurrent import Extras, RecurrenceInputs, Recurrent
from attentions.kernels.chunks import tokens_at_once
from attentions.kernels.delta_rule import SPAN_ROUNDING, rwkv7
from attentions.kernels.norms import unit
from attentions.kernels.numerics import recompute, upcast
from attentions.kernels.recurrence import Form
from cab import LayerPosition, PaddingMasks, register_attention
from cab.attention import SINGLE_LAYER, ConvolutionArguments, Decoded, DecodeState
from cab.claims import Claims
from cab.padding import lengths
from cab.registry.options import Positive


class TokenShift(Recurrent):
    """Base class of recurrences whose q, k, v and gates are functions of a token and the previous one.

    The decoding state also contains the last token. A subclass computes mixtures of the two tokens in ``mixed`` and the
    heads in ``inputs``.
    """

    norm_weight: nn.Parameter
    decays = "feature"

    def initialize_projections(self, key_gain: float) -> None:
        """Initialize as RWKV-LM: orthogonal with gain 1 for r and v, ``key_gain`` for k, and zero for ``out_proj``.

        RWKV-LM's ``generate_init_weight`` draws these weights, which replace those of the layer's constructor.
        """
        for linear, gain in ((self.q_proj, 1.0), (self.k_proj, key_gain), (self.v_proj, 1.0)):
            nn.init.orthogonal_(linear.weight, gain=gain)
        nn.init.zeros_(self.out_proj.weight)

    def inputs(self, x: Tensor, previous: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Tensor]]:
        """Compute q, k, v [B, H, N, E] and extras [B, N, ...] from tokens [B, N, D] and the previous tokens."""
        raise NotImplementedError

    def mixed(self, x: Tensor, previous: Tensor) -> tuple[Tensor, ...]:
        """Compute the tensors [B, N, ...] that ``inputs`` needs; other intermediate results are recomputed."""
        raise NotImplementedError

    def mixed_by_chunks(self, x: Tensor, previous: Tensor) -> tuple[Tensor, ...]:
        """Run ``mixed`` on one chunk of tokens at a time."""
        size = tokens_at_once(len(x) * self.num_heads, x.device)
        chunks = zip(x.split(size, dim=1), previous.split(size, dim=1), strict=True)
        parts = zip(*(recompute(self.mixed, *chunk) for chunk in chunks), strict=True)
        return tuple(torch.cat(part, dim=1) if len(part) > 1 else part[0] for part in parts)

    def compute(self, query: Tensor, _key: Tensor, _value: Tensor, padding: PaddingMasks) -> Tensor:
        """Compute the outputs [B, N, D] of all tokens."""
        return self.decode_inputs(query, padding.query, self.init_decode_state(len(query), query))[0]

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Decoded:
        """Compute the outputs of these tokens and the state after them."""
        seen = torch.cat([state["token"].to(tokens.dtype), tokens], dim=1)
        (query, key, value), extras = self.inputs(tokens, seen[:, :-1])
        output, after = self.decode(query, key, value, state, PaddingMasks(mask, mask), **extras)
        last = lengths(tokens, mask)[:, None, None].expand(-1, 1, tokens.shape[2])
        return self.out_proj(self.merge_heads(output)), {**after, "token": seen.gather(1, last)}

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return the initial state, in which the previous token is zero."""
        return {**super().init_decode_state(batch_size, like), "token": like.new_zeros(batch_size, 1, self.embed_dim)}


MIXED = 5
"""Number of mixtures of a token and the previous one: for the decay, k, v, r and the gate."""

LARGEST = 7.0
"""Largest logit of a decay: exp(-exp(7)) is zero in every floating-point type."""


@register_attention("rwkv6", patterns="CS", complexity="n", paper="Peng et al. 2024")
class RWKV6Attention(TokenShift):
    """Compute o_t = r_t (S_{t-1} + u k_t (x) v_t) with S_t = diag(w_t) S_{t-1} + k_t (x) v_t.

    Eagle and Finch, Eq. 14 to 19. Each of w, k, v, r and the gate g has its own input, x_t + (x_{t-1} - x_t) (mu +
    tanh(y W_1) W_2) with y = x_t + (x_{t-1} - x_t) mu_x. The decay is w = exp(-exp(w_0 + tanh(x W_3) W_4)). A layer
    norm per head, the factor silu(g) and ``out_proj`` follow. Scores are not divided by sqrt(K).

    The initialization is that of RWKV-LM (RWKV-v5/src/model.py, ``RWKV_Tmix_x060`` and ``generate_init_weight``).
    Channel mixing, the feed-forward layer of RWKV, is part of the backbone.

    Args:
        mix_rank: width between W_1 and W_2 per input; 32 in the released models.
        decay_rank: width between W_3 and W_4; 64 in the released models.
    """

    def __init__(
        self,
        *,
        layer_position: LayerPosition = SINGLE_LAYER,
        mix_rank: Positive = 32,
        decay_rank: Positive = 64,
        **common: Unpack[ConvolutionArguments],
    ) -> None:
        super().__init__(**common)
        index, num_layers = layer_position.index, layer_position.num_layers
        last, rest = index / max(num_layers - 1, 1), 1 - index / num_layers
        ratio = torch.arange(self.embed_dim) / self.embed_dim
        ramp, slow = 1 - ratio**rest, 1 - ratio ** (rest / 2)
        self.mix = nn.Parameter(torch.stack([ramp, ramp, ramp - 0.3 * last, slow, slow]))
        self.mix_of_mix = nn.Parameter(ramp.clone())
        self.mix_in = nn.Parameter(torch.zeros(self.embed_dim, MIXED * mix_rank))
        self.mix_out = nn.Parameter(torch.empty(MIXED, mix_rank, self.embed_dim).uniform_(-0.01, 0.01))
        ratio = torch.arange(self.embed_dim) / max(self.embed_dim - 1, 1)
        self.decay = nn.Parameter(-6 + 5 * ratio ** (0.7 + 1.3 * last))
        self.decay_in = nn.Parameter(torch.zeros(self.embed_dim, decay_rank))
        self.decay_out = nn.Parameter(torch.empty(decay_rank, self.embed_dim).uniform_(-0.01, 0.01))
        zigzag = 0.1 * ((torch.arange(self.embed_dim) + 1) % 3 - 1)
        self.bonus = nn.Parameter((last * (1 - ratio) + zigzag).view(self.num_heads, 1, self.key_width))
        self.gate_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=False)
        nn.init.orthogonal_(self.gate_proj.weight, gain=0.1)
        self.initialize_projections(key_gain=0.1)
        weight = ((index + 1) / num_layers) ** 0.7
        self.norm_weight = nn.Parameter(torch.full((self.num_heads, 1, self.value_width), weight))
        self.norm_bias = nn.Parameter(torch.zeros(self.num_heads, 1, self.value_width))

    def inputs(self, x: Tensor, previous: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Tensor]]:
        """Compute r, k, v [B, H, N, E] and gate and decay [B, N, D] from tokens [B, N, D] and the previous tokens."""
        for_query, for_key, for_value, for_gate, decay = self.mixed_by_chunks(x, previous)
        return self.project(for_query, for_key, for_value), {"gate": self.gate_proj(for_gate), "decay": decay}

    def mixed(self, x: Tensor, previous: Tensor) -> tuple[Tensor, ...]:
        """Compute the inputs of r, k, v and the gate, and the decay's logits, [B, N, D] each."""
        change = previous - x
        shares = torch.tanh((x + change * self.mix_of_mix.to(x.dtype)) @ self.mix_in).unflatten(-1, (MIXED, -1))
        shares = shares.transpose(1, 2) @ self.mix_out  # [B, N, 5, rank] to [B, 5, N, D]
        for_decay, for_key, for_value, for_query, for_gate = (
            x + change * (mix + share.to(x.dtype))
            for mix, share in zip(self.mix.to(x.dtype), shares.unbind(dim=1), strict=True)
        )
        decay = self.decay + torch.tanh(for_decay @ self.decay_in) @ self.decay_out
        return for_query, for_key, for_value, for_gate, decay

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> RecurrenceInputs:
        log_decay = -upcast(self.split_heads(extras["decay"])).clamp(max=LARGEST).exp()
        return RecurrenceInputs(query, key, value, log_decay)

    def update(self, terms: RecurrenceInputs, memory: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        """Compute o of all tokens and S after the last one.

        A token reads the state before it is updated. Queries are therefore moved one token back, and the first one
        reads the initial state.
        """
        query, key, value, log_decay, _ = terms
        initial = (upcast(query[:, :, :1]) @ memory).to(query.dtype)
        later, memory = form(F.pad(query[:, :, 1:], (0, 0, 0, 1)), key, value, log_decay, memory)
        current = (query * self.bonus.to(query.dtype) * key).sum(dim=-1, keepdim=True) * value
        return torch.cat([initial, later[:, :, :-1]], dim=2) + current, memory

    def finish(self, output: Tensor, _value: Tensor, extras: Extras) -> Tensor:
        normed = F.layer_norm(output, output.shape[-1:], eps=64e-5)
        normed = normed * self.norm_weight.to(output.dtype) + self.norm_bias.to(output.dtype)
        return normed * F.silu(self.split_heads(extras["gate"]))

    def compute_row(self, query: Tensor, _key: Tensor, _value: Tensor, _draws: Any) -> Tensor:
        """Compute the outputs as a sum over all pairs of tokens, [n, D] to [n, D]."""
        x = query[None]
        heads, extras = self.inputs(x, F.pad(x[:, :-1], (0, 0, 1, 0)))
        r, k, v = self.convolve_row(heads)
        sums = F.pad(-self.split_heads(extras["decay"]).exp(), (0, 0, 1, 0)).cumsum(dim=2)
        between = (sums[:, :, :-1].unsqueeze(3) - sums[:, :, 1:].unsqueeze(2)).clamp(max=0).exp()  # [1, H, i, j, K]
        products = torch.einsum("bhic,bhjc,bhijc->bhij", r, k, between).tril(-1)
        products = products + ((r * k) @ self.bonus.mT).squeeze(-1).diag_embed()
        return self.out_proj(self.merge_heads(self.finish(products @ v, v, extras)))[0]


FASTEST = math.exp(-0.5)
"""Largest rate of decay: a feature retains at least exp(-exp(-1/2)) = 0.545 per token."""

NORM_EPS = 64e-5


@register_attention("rwkv7", patterns="CS", complexity="n", paper="Peng et al. 2025")
class RWKV7Attention(TokenShift):
    """Compute S_t = S_{t-1} (diag(w_t) - z_t^T (a_t * z_t)) + v_t^T k~_t and o_t = r_t S_t^T.

    Goose, section 4.1. Each of r, w, k, v, a and the gate g has its own input, x_t + (x_{t-1} - x_t) mu. The removed
    key is z = k xi / |k xi| per head, the learning rate a = sigmoid(a_0 + x A_1 A_2) per feature, the written key k~ =
    k (1 + (a - 1) alpha), the decay w = exp(-exp(-1/2) sigmoid(w_0 + tanh(x W_1) W_2)) and the gate g = sigmoid(x G_1)
    G_2. A layer norm per head, the sum with (r (rho k~)^T) v, the factor g and ``out_proj`` follow. Scores are not
    divided by sqrt(K).

    The initialization is that of RWKV-LM (RWKV-v7/train_temp/src/model.py, ``RWKV_Tmix_x070`` and
    ``generate_init_weight``). A single layer cannot mix its values with those of the network's first layer.

    Args:
        decay_rank: width between W_1 and W_2. The default is RWKV-LM's, 2.5 sqrt(``embed_dim``) rounded to a multiple
            of 32, at least 32.
        rate_rank: width between A_1 and A_2; by default as ``decay_rank``.
        gate_rank: width between G_1 and G_2; by default 5 sqrt(``embed_dim``), rounded likewise.
    """

    operation = rwkv7
    claims = Claims(noncausal_rounding=SPAN_ROUNDING)

    def __init__(
        self,
        *,
        layer_position: LayerPosition = SINGLE_LAYER,
        decay_rank: Positive | None = None,
        rate_rank: Positive | None = None,
        gate_rank: Positive | None = None,
        **common: Unpack[ConvolutionArguments],
    ) -> None:
        super().__init__(**common)
        decay_rank = default_rank(2.5, self.embed_dim) if decay_rank is None else decay_rank
        rate_rank = default_rank(2.5, self.embed_dim) if rate_rank is None else rate_rank
        gate_rank = default_rank(5.0, self.embed_dim) if gate_rank is None else gate_rank
        index, num_layers = layer_position.index, layer_position.num_layers
        late, rest = index / max(num_layers - 1, 1), 1 - index / num_layers
        ratio = torch.arange(self.embed_dim) / self.embed_dim
        powers = torch.tensor([0.2, 0.9, 0.7, 0.7, 0.9, 0.2])  # of r, w, k, v, a, g
        self.mix = nn.Parameter(1 - ratio ** (powers * rest).unsqueeze(1))
        ratio = torch.arange(self.embed_dim) / max(self.embed_dim - 1, 1)
        within = torch.linspace(-1, 1, self.key_width).repeat(self.num_heads)
        zigzag = within * within.abs()
        self.decay = nn.Parameter(-5.5 + 6 * ratio ** (1 + late**0.3) + 2.5 * zigzag)
        self.rate = nn.Parameter(-0.39 + 0.3 * zigzag + 0.4 * ratio)
        self.decay_in, self.decay_out = low_rank(self.embed_dim, decay_rank)
        self.rate_in, self.rate_out = low_rank(self.embed_dim, rate_rank)
        self.gate_in, self.gate_out = low_rank(self.embed_dim, gate_rank)
        of_head = (self.num_heads, 1, self.key_width)
        self.removed = nn.Parameter((0.76 - 0.1 * ratio).view(of_head))
        self.replaced = nn.Parameter(torch.full(of_head, 1.02))
        self.bonus = nn.Parameter(torch.full(of_head, -0.04))
        self.norm_weight = nn.Parameter(torch.full(of_head, (1 - rest + 1 / num_layers) ** 0.7))
        self.norm_bias = nn.Parameter(torch.zeros(of_head))
        self.initialize_projections(key_gain=0.1)

    def inputs(self, x: Tensor, previous: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Tensor]]:
        """Compute r, k, v [B, H, N, E], the logits of decay and learning rate, and the gate, [B, N, D] each."""
        for_query, for_key, for_value, decay, rate, gate = self.mixed_by_chunks(x, previous)
        return self.project(for_query, for_key, for_value), {"decay_logit": decay, "rate_logit": rate, "gate": gate}

    def mixed(self, x: Tensor, previous: Tensor) -> tuple[Tensor, ...]:
        """Compute the inputs of r, k and v, the logits of decay and learning rate, and the gate."""
        for_query, for_decay, for_key, for_value, for_rate, for_gate = (
            x + (previous - x) * mix for mix in self.mix.to(x.dtype)
        )
        decay = self.decay + torch.tanh(for_decay @ self.decay_in) @ self.decay_out
        rate = self.rate + for_rate @ self.rate_in @ self.rate_out
        gate = torch.sigmoid(for_gate @ self.gate_in) @ self.gate_out
        return for_query, for_key, for_value, decay, rate, gate

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, _position: Tensor) -> RecurrenceInputs:
        log_decay = -FASTEST * upcast(self.split_heads(extras["decay_logit"])).sigmoid()
        rate = self.split_heads(extras["rate_logit"]).to(key.dtype).sigmoid()
        return RecurrenceInputs(query, key, value, log_decay, strength=rate)

    def update(self, terms: RecurrenceInputs, memory: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        """Compute the normalized readout plus the bonus of the current token, and S after the last token."""
        query, key, value, log_decay, rate = terms
        assert log_decay is not None
        assert rate is not None
        removed, replaced, bonus = (x.to(key.dtype) for x in (self.removed, self.replaced, self.bonus))
        removal = unit(key * removed, eps=1e-12)
        key = key * (1 + (rate - 1) * replaced)
        output, memory = form(query, key, value, removal, rate * removal, log_decay, memory)
        return self.layer_norm(output) + (query * bonus * key).sum(dim=-1, keepdim=True) * value, memory

    def layer_norm(self, x: Tensor) -> Tensor:
        normed = F.layer_norm(x, x.shape[-1:], eps=NORM_EPS)
        return normed * self.norm_weight.to(x.dtype) + self.norm_bias.to(x.dtype)

    def finish(self, output: Tensor, _value: Tensor, extras: Extras) -> Tensor:
        return output * self.split_heads(extras["gate"])

    def compute_row(self, query: Tensor, _key: Tensor, _value: Tensor, _draws: Any) -> Tensor:
        """Compute the outputs token by token with S [H, V, K] as in the paper, [n, D] to [n, D]."""
        x = query[None]
        heads, extras = self.inputs(x, F.pad(x[:, :-1], (0, 0, 1, 0)))
        r, k, v = (y[0].transpose(0, 1).unsqueeze(2) for y in self.convolve_row(heads))  # [n, H, 1, E], rows
        w, a = (self.split_heads(extras[name])[0].sigmoid().transpose(0, 1) for name in ("decay_logit", "rate_logit"))
        w, a = (-FASTEST * w).exp(), a.unsqueeze(2)
        z = k * self.removed
        z = z / (z.square().sum(dim=-1, keepdim=True) + 1e-12).sqrt()
        k = k * (1 - self.replaced + a * self.replaced)
        memory, outputs = torch.zeros_like(v[0].mT @ k[0]), []
        for t in range(len(query)):
            memory = memory @ (w[t].diag_embed() - z[t].mT @ (a[t] * z[t])) + v[t].mT @ k[t]
            current = (r[t] * self.bonus * k[t]).sum(dim=-1, keepdim=True) * v[t]
            outputs.append(self.layer_norm(r[t] @ memory.mT) + current)
        output = torch.stack(outputs).transpose(0, 2)  # [1, H, n, V]
        return self.out_proj(self.merge_heads(self.finish(output, v, extras)))[0]


def default_rank(factor: float, width: int) -> int:
    """Return RWKV-LM's rank for a width: ``factor`` sqrt(width), rounded to a multiple of 32, at least 32."""
    return max(32, round(factor * width**0.5 / 32) * 32)


def low_rank(width: int, rank: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Create two maps [D, rank] and [rank, D], zero and orthogonal, whose product starts at zero."""
    down, up = torch.zeros(width, rank), torch.empty(rank, width)
    nn.init.orthogonal_(up, gain=0.1 * max(rank / width, 1) ** 0.5)
    return nn.Parameter(down), nn.Parameter(up)
