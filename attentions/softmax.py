"""Softmax attention (Vaswani et al. 2017) by torch's fused kernels, with the options of later models."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.layers import alibi_slopes, rotate
from attentions.kernels.numerics import mask_value, upcast
from attentions.kernels.softmax_attention import Positions, over_visible, positional_softmax, softmax
from cab import Attention, DecodeState, PaddingMasks, Pattern, UserError, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims, softmax_if
from cab.padding import lengths
from cab.registry.options import Positive

PLAIN = softmax_if(sink="none", num_kv_heads=None, positions="none", window=None, sink_tokens=0, qk_norm=False)
"""Options without which it is softmax attention."""


@register_attention("vanilla", patterns="NS CS NC CC", complexity="n^2", paper="Vaswani et al. 2017")
class VanillaAttention(Attention):
    """Compute softmax(q k^T / sqrt(E)) v (CAB, Eq. 1).

    A target without a visible key gets zero. Decoding stores all keys and values: 2 D numbers per token, or fewer with
    fewer heads of keys and values.

    The other options are those of decoder-only models since 2021. A position of a sequence counts its own tokens, from
    the first that is not padding.

    Args:
        qkv_bias: whether the query, key and value projections have biases; PoinTr's have none.
        out_bias: whether the output projection has a bias; Llama has none at all.
        num_kv_heads: heads of keys and values, each shared by several heads of queries: grouped-query attention
            (Ainslie et al. 2023); 1 is multi-query attention (Shazeer 2019). Default: ``num_heads``.
        sink: an additional logit whose weight is dropped, so that a target can attend to nothing: ``none``; ``one``, a
            logit of 0 (Miller 2023); ``learned``, one per head with initial value 0 (OpenAI 2025, gpt-oss).
        positions: in NS and CS. ``rope`` rotates the coordinates c and c + E / 2 of queries and keys by position *
            10000^(-2c / E) (Su et al. 2021, with the pairs of Llama); ``alibi`` adds -s_h |i - j| to the logits, with
            slopes s_h = 2^(-8 h / H) of heads h = 1 .. H (Press et al. 2021).
        qk_norm: RMS norms of the queries and keys of each head, with weights that all heads share, before the rotation
            (Qwen3; Dehghani et al. 2023).
        window: in CS, a target sees the last ``window`` tokens, itself included. Decoding stores no others.
        sink_tokens: first tokens of a sequence, visible in addition to the window (Xiao et al. 2023, StreamingLLM).
            Positions are those of the sequence, not of the cache.
    """

    claims = Claims(softmax_limit=PLAIN)
    has_own_kernel: ClassVar[bool] = False
    """Whether a subclass computes all weights by another :meth:`kernel`."""
    recent: ClassVar[int] = 64
    """Decoded tokens that are kept apart from the long cache, so that a step does not copy the whole of it."""

    def __init__(
        self,
        *,
        qkv_bias: bool = True,
        out_bias: bool = True,
        num_kv_heads: int | None = None,
        sink: Literal["none", "one", "learned"] = "none",
        positions: Literal["none", "rope", "alibi"] = "none",
        qk_norm: bool = False,
        window: Positive | None = None,
        sink_tokens: int = 0,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(**common)
        self.num_kv_heads = self.num_heads if num_kv_heads is None else num_kv_heads
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise UserError(f"num_kv_heads must divide num_heads ({self.num_heads}), got {num_kv_heads}")
        self.sink = sink
        self.sink_logit = nn.Parameter(torch.zeros(self.num_heads)) if sink == "learned" else None
        if self.num_kv_heads < self.num_heads:
            self.share_keys()
        self.positions, self.window, self.sink_tokens = positions, window, sink_tokens
        self.check_order()
        # With the padding on the right, the causal order alone hides it from every real target.
        self.selects_tokens = window is not None
        self.requires_right_padding = self.pattern is Pattern.CS or positions != "none"
        self.q_norm, self.k_norm = (nn.RMSNorm(self.head_dim, eps=1e-6) if qk_norm else None for _ in range(2))
        unbiased = [] if qkv_bias else [self.q_proj, self.k_proj, self.v_proj]
        for projection in unbiased + ([] if out_bias else [self.out_proj]):
            projection.register_parameter("bias", None)

    def share_keys(self) -> None:
        """Create projections to fewer heads of keys and values."""
        for name in ("k_proj", "v_proj"):
            linear = nn.Linear(self.embed_dim, self.num_kv_heads * self.head_dim)
            nn.init.xavier_uniform_(linear.weight, gain=2**-0.5)
            nn.init.zeros_(linear.bias)
            self.add_module(name, linear)
        self.make_convolutions()

    def check_order(self) -> None:
        """Raise UserError for options that need an order of the tokens which the pattern does not have."""
        if self.positions != "none" and self.pattern.is_cross:
            raise UserError(f"positions={self.positions} requires pattern NS or CS, got pattern {self.pattern}")
        if self.positions == "rope" and self.head_dim % 2:
            raise UserError(f"positions=rope requires an even width per head, got {self.head_dim}")
        if self.window is not None and self.pattern is not Pattern.CS:
            raise UserError(f"window={self.window} requires pattern CS, got pattern {self.pattern}")
        if self.sink_tokens and self.window is None:
            raise UserError(f"sink_tokens={self.sink_tokens} requires a window: without one, all tokens are visible")

    @property
    def restricts_pairs(self) -> bool:
        """Whether weights of pairs of tokens depend on their positions, beyond the causal order."""
        return self.positions == "alibi" or self.window is not None

    def prepared(self, x: Tensor, norm: nn.RMSNorm | None, position: Tensor) -> Tensor:
        """Normalize and rotate queries or keys [B, H, N, E] at ``position`` [B or 1, N], if the options say so."""
        if norm is not None:
            x = F.rms_norm(upcast(x), (self.head_dim,), upcast(norm.weight), norm.eps).to(x.dtype)
        return rotate(upcast(x), position, by_halves=True).to(x.dtype) if self.positions == "rope" else x

    def order(self, device: torch.device) -> Positions:
        """Return how weights depend on positions."""
        heads = torch.arange(self.num_heads, device=device, dtype=torch.float64)
        slopes = alibi_slopes(heads) if self.positions == "alibi" else None
        return Positions(self.pattern is Pattern.CS, self.window, self.sink_tokens, slopes)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        position, is_causal = torch.arange(query.shape[2], device=query.device)[None], self.pattern is Pattern.CS
        query, key = self.prepared(query, self.q_norm, position), self.prepared(key, self.k_norm, position)
        hidden = None if is_causal else padding.key
        if self.restricts_pairs and self.sink == "none" and not self.has_own_kernel:
            options: dict[str, Any] = {"hidden": hidden, "dropout": self.weight_dropout, "scale": self.scale}
            return positional_softmax(query, key, value, self.order(query.device), **options)
        visible = _visible(hidden)
        if self.restricts_pairs:
            visible, is_causal = self.order(query.device).mask(position, position, visible, query.dtype), False
        return self.softmax_attention(query, key, value, visible=visible, is_causal=is_causal)

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.q_norm is not None and self.k_norm is not None:
            query, key = (
                x / (x.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * norm.weight
                for x, norm in ((query, self.q_norm), (key, self.k_norm))
            )
        if self.positions == "rope":
            query, key = rotated_as_complex(query), rotated_as_complex(key)
        repeats = self.num_heads // self.num_kv_heads
        key, value = key.repeat_interleave(repeats, dim=0), value.repeat_interleave(repeats, dim=0)
        logits = self.logits(query, key)
        i, j = (torch.arange(n, device=query.device) for n in logits.shape[1:])
        distance = i[:, None] - j
        if self.positions == "alibi":
            slopes = alibi_slopes(torch.arange(self.num_heads, device=query.device))
            logits = logits - slopes[:, None, None] * distance.abs()
        if self.pattern is Pattern.CS:
            logits = logits.masked_fill(distance < 0, -torch.inf)
        if self.window is not None:
            logits = logits.masked_fill((distance >= self.window) & (j >= self.sink_tokens), -torch.inf)
        if self.sink == "none":
            return logits.softmax(dim=-1) @ value
        sink = query.new_zeros(self.num_heads) if self.sink_logit is None else self.sink_logit
        sink = sink[:, None, None].expand(-1, logits.shape[1], 1)
        return torch.cat([logits, sink], dim=-1).softmax(dim=-1)[..., :-1] @ value

    def logits(self, query: Tensor, key: Tensor) -> Tensor:
        """Compute logits [..., N, M] of queries [..., N, E] and keys [..., M, E]."""
        return query @ key.mT * self.scale

    def softmax_attention(
        self, query: Tensor, key: Tensor, value: Tensor, *, visible: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Compute weighted means of ``value`` [B, H, N, E].

        ``visible`` [B or 1, 1 or H, 1 or N, M] is bool, or added to the logits. A target without a visible key gets
        zero.
        """
        repeats = self.num_heads // self.num_kv_heads
        if repeats > 1:
            key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
        if self.sink != "none":
            return self.attend_with_sink(query, key, value, visible, is_causal)
        return over_visible(self.kernel, query, key, value, visible, is_causal)

    def attend_with_sink(
        self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, is_causal: bool
    ) -> Tensor:
        """Attend with the sink as an additional first key of value zero, visible to every target.

        The key is zero except in one additional coordinate, which holds the learned logit. A causal pattern also gets
        an additional first target.
        """
        if self.sink_logit is not None:
            logit = self.sink_logit.to(key.dtype) / self.scale
            sink = F.pad(logit[:, None, None], (self.head_dim, 0)).expand(len(key), -1, -1, -1)
            query, key, value = F.pad(query, (0, 1), value=1.0), F.pad(key, (0, 1)), F.pad(value, (0, 1))
            key = torch.cat([sink, key], dim=2)
        else:
            key = F.pad(key, (0, 0, 1, 0))
        value = F.pad(value, (0, 0, 1, 0))
        if is_causal:
            return self.kernel(F.pad(query, (0, 0, 1, 0)), key, value, None, True)[:, :, 1:, : self.head_dim]
        seen = None if visible is None else F.pad(visible, (1, 0), value=not visible.is_floating_point())
        return self.kernel(query, key, value, seen, False)[..., : self.head_dim]

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
        """Compute softmax attention in which every target has a visible key; a mask of numbers is added to logits."""
        form = softmax.rounding_to(query.dtype)
        return form(query, key, value, visible, self.weight_dropout, is_causal, scale=self.scale)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return an empty state: a long cache of keys and values, and a short one of recent tokens."""
        empty = like.new_empty(batch_size, self.num_kv_heads, 0, self.head_dim)
        state = dict.fromkeys(("key", "value", "recent_key", "recent_value"), empty)
        state["key_padding"] = empty.new_zeros(batch_size, 0, dtype=torch.bool)
        if self.positions != "none" or self.window is not None:
            state["length"] = torch.zeros(batch_size, dtype=torch.long, device=like.device)
        if self.restricts_pairs:
            state["position"] = state["length"].new_empty(batch_size, 0)
        return state

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        state = {"key": self.prepared(key, self.k_norm, key.new_zeros(1, 1)), "value": value}
        return state if padding.key is None else {**state, "key_padding": padding.key}

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> Decoded:
        query = self.prepared(query, self.q_norm, query.new_zeros(1, 1))
        visible = _visible(state.get("key_padding"))
        return self.softmax_attention(query, state["key"], state["value"], visible=visible), state

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        position = torch.arange(query.shape[2], device=query.device)[None]
        if "length" in state:
            position = state["length"][:, None] + position
            state = {**state, "length": state["length"] + lengths(key, padding.key)}
        query, key = self.prepared(query, self.q_norm, position), self.prepared(key, self.k_norm, position)
        if self.restricts_pairs:
            state = {**state, "position": torch.cat([state["position"], position], dim=1)}
        state = {**state, **self._appended(state, key, value, padding.key)}
        return self._attend_to_cache(query, state), self._within_window(state)

    def _within_window(self, state: DecodeState) -> DecodeState:
        """Remove the keys that no later token sees from the long cache, whenever there is no other."""
        if self.window is None or state["recent_key"].shape[2]:
            return state
        position, first = state["position"], state["length"][:, None] - self.window + 1
        kept = ((position >= first) | (position < self.sink_tokens)) & ~state["key_padding"]
        columns = kept.any(dim=0).nonzero()[:, 0]
        tokens = {name: state[name].index_select(1, columns) for name in ("position", "key_padding")}
        return {**state, **tokens, **{name: state[name].index_select(2, columns) for name in ("key", "value")}}

    def _attend_to_cache(self, query: Tensor, state: DecodeState) -> Tensor:
        """Attend from the last T tokens, which the state already contains: query [B, H, T, E]."""
        key, recent_key, padding = state["key"], state["recent_key"], state["key_padding"]
        length, past = query.shape[2], padding.shape[1] - query.shape[2]
        if past == 0 and recent_key.shape[2] == 0 and not self.restricts_pairs:
            return self.softmax_attention(query, key, state["value"], is_causal=True)
        visible = ~padding[:, None, None] & padding.new_ones(length, past + length).tril(past)
        if self.restricts_pairs:
            position = state["position"]
            visible = self.order(query.device).mask(position[:, past:], position, visible, query.dtype)
        if recent_key.shape[2] == 0:
            return self.softmax_attention(query, key, state["value"], visible=visible)
        # A few targets and two blocks of keys: one row of weights a target, without joining the blocks. The queries
        # that share a key stand below each other.
        q = query.unflatten(1, (self.num_kv_heads, -1)).flatten(2, 3)
        logits = torch.cat([self.logits(q, key), self.logits(q, recent_key)], dim=-1).view(*query.shape[:3], -1)
        logits = with_mask(logits, visible, mask_value(logits.dtype))
        if self.sink != "none":
            sink = logits.new_zeros(self.num_heads) if self.sink_logit is None else self.sink_logit
            sink = sink.to(logits.dtype)[:, None, None].expand(len(logits), -1, length, 1)
            logits = torch.cat([logits, sink], dim=-1)
        weights = F.dropout(logits.softmax(dim=-1)[..., : visible.shape[-1]], self.dropout, self.training)
        weights = weights.reshape(*q.shape[:3], -1)
        long, recent = weights.split([key.shape[2], recent_key.shape[2]], dim=-1)
        return (long @ state["value"] + recent @ state["recent_value"]).view(*query.shape[:3], -1)

    def _appended(self, state: DecodeState, key: Tensor, value: Tensor, padding: Tensor | None) -> DecodeState:
        """Append keys and values [B, H, T, E] to the state."""
        if padding is None:
            padding = key.new_zeros(key.shape[0], key.shape[2], dtype=torch.bool)
        new = {"key_padding": torch.cat([state["key_padding"], padding], dim=1)}
        is_full = state["recent_key"].shape[2] + key.shape[2] > self.recent
        for name, x in (("key", key), ("value", value)):
            long, recent = state[name], torch.cat([state[f"recent_{name}"].to(x.dtype), x], dim=2)
            if is_full:
                long, recent = torch.cat([long.to(recent.dtype), recent], dim=2), recent[:, :, :0]
            new |= {name: long, f"recent_{name}": recent}
        return new


def _visible(hidden: Tensor | None) -> Tensor | None:
    return None if hidden is None else ~hidden[:, None, None]


def with_mask(logits: Tensor, visible: Tensor, hidden: float) -> Tensor:
    """Add a mask of numbers to the logits, or set those outside a bool mask to ``hidden``."""
    return logits + visible if visible.is_floating_point() else logits.masked_fill(~visible, hidden)


def rotated_as_complex(x: Tensor) -> Tensor:
    """Rotate row t of [..., n, E] by t 10000^(-2c / E) as complex numbers of the coordinates c and c + E / 2."""
    half, position = x.shape[-1] // 2, torch.arange(x.shape[-2], device=x.device, dtype=x.dtype)
    frequency = 10_000 ** (-torch.arange(half, device=x.device, dtype=x.dtype) / half)
    angle = position[:, None] * frequency
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], dim=-1)
