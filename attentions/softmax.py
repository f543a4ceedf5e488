"""Softmax attention (Vaswani et al. 2017): by torch's fused kernels, written out, and by the flash kernel alone."""

from __future__ import annotations

from typing import ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attentions.kernels.numerics import mask_value
from cab import Attention, DecodeState, PaddingMasks, Pattern, UserError, register_attention
from cab.attention import CommonArguments, Decoded
from cab.claims import Claims, softmax_if


@register_attention("vanilla", patterns="NS CS NC CC", complexity="n^2", paper="Vaswani et al. 2017")
class VanillaAttention(Attention):
    """Compute softmax(q k^T / sqrt(E)) v (CAB, Eq. 1).

    A target without a visible key gets zero. Decoding stores all keys and values: 2 D numbers per token, or fewer with
    fewer heads of keys and values.

    Args:
        qkv_bias: whether the query, key and value projections have biases; PoinTr's have none.
        num_kv_heads: heads of keys and values, each shared by several heads of queries: grouped-query attention
            (Ainslie et al. 2023); 1 is multi-query attention (Shazeer 2019). Default: ``num_heads``.
        sink: an additional logit whose weight is dropped, so that a target can attend to nothing: ``none``; ``one``, a
            logit of 0 (Miller 2023); ``learned``, one per head with initial value 0 (OpenAI 2025, gpt-oss).
    """

    claims = Claims(softmax_limit=softmax_if())
    recent: ClassVar[int] = 64
    """Decoded tokens that are kept apart from the long cache, so that a step does not copy the whole of it."""

    def __init__(
        self,
        *,
        qkv_bias: bool = True,
        num_kv_heads: int | None = None,
        sink: Literal["none", "one", "learned"] = "none",
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
        # With the padding on the right, the causal order alone hides it from every real target.
        self.requires_right_padding = self.pattern is Pattern.CS
        if not qkv_bias:
            for projection in (self.q_proj, self.k_proj, self.v_proj):
                projection.register_parameter("bias", None)

    def share_keys(self) -> None:
        """Create projections to fewer heads of keys and values."""
        for name in ("k_proj", "v_proj"):
            linear = nn.Linear(self.embed_dim, self.num_kv_heads * self.head_dim)
            nn.init.xavier_uniform_(linear.weight, gain=2**-0.5)
            nn.init.zeros_(linear.bias)
            self.add_module(name, linear)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        if self.pattern is Pattern.CS:
            return self.softmax_attention(query, key, value, is_causal=True)
        return self.softmax_attention(query, key, value, visible=_visible(padding.key))

    def reference(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        repeats = self.num_heads // self.num_kv_heads
        key, value = key.repeat_interleave(repeats, dim=0), value.repeat_interleave(repeats, dim=0)
        logits = self.logits(query, key)
        if self.pattern is Pattern.CS:
            logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
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

        ``visible`` is bool [B, 1, 1 or N, M]; a target without a visible key gets zero.
        """
        repeats = self.num_heads // self.num_kv_heads
        if repeats > 1:
            key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
        if self.sink != "none":
            return self.attend_with_sink(query, key, value, visible, is_causal)
        if visible is None:
            return self.kernel(query, key, value, None, is_causal)
        sees_none = ~visible.any(dim=-1, keepdim=True)
        return self.kernel(query, key, value, visible | sees_none, False).masked_fill(sees_none, 0.0)

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
        seen = None if visible is None else F.pad(visible, (1, 0), value=True)
        return self.kernel(query, key, value, seen, False)[..., : self.head_dim]

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
        """Compute softmax attention in which every target has a visible key."""
        dropout = self.weight_dropout
        return F.scaled_dot_product_attention(query, key, value, visible, dropout, is_causal, scale=self.scale)

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return an empty state: a long cache of keys and values, and a short one of recent tokens."""
        empty = like.new_empty(batch_size, self.num_kv_heads, 0, self.head_dim)
        state = dict.fromkeys(("key", "value", "recent_key", "recent_value"), empty)
        return {**state, "key_padding": empty.new_zeros(batch_size, 0, dtype=torch.bool)}

    def encode_source(self, key: Tensor, value: Tensor, padding: PaddingMasks) -> DecodeState:
        state = {"key": key, "value": value}
        return state if padding.key is None else {**state, "key_padding": padding.key}

    def decode_cross(self, query: Tensor, state: DecodeState, _padding: PaddingMasks) -> Decoded:
        visible = _visible(state.get("key_padding"))
        return self.softmax_attention(query, state["key"], state["value"], visible=visible), state

    def decode(self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks) -> Decoded:
        state = self._appended(state, key, value, padding.key)
        return self._attend_to_cache(query, state), state

    def _attend_to_cache(self, query: Tensor, state: DecodeState) -> Tensor:
        """Attend from the last T tokens, which the state already contains: query [B, H, T, E]."""
        key, recent_key, padding = state["key"], state["recent_key"], state["key_padding"]
        length, past = query.shape[2], padding.shape[1] - query.shape[2]
        if past == 0 and recent_key.shape[2] == 0:
            return self.softmax_attention(query, key, state["value"], is_causal=True)
        visible = ~padding[:, None, None] & padding.new_ones(length, past + length).tril(past)
        if recent_key.shape[2] == 0:
            return self.softmax_attention(query, key, state["value"], visible=visible)
        # A few targets and two blocks of keys: one row of weights a target, without joining the blocks. The queries
        # that share a key stand below each other.
        q = query.unflatten(1, (self.num_kv_heads, -1)).flatten(2, 3)
        logits = torch.cat([self.logits(q, key), self.logits(q, recent_key)], dim=-1).view(*query.shape[:3], -1)
        logits = logits.masked_fill(~visible, mask_value(logits.dtype))
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


@register_attention("eager", patterns="NS CS NC CC", complexity="n^2", paper="Vaswani et al. 2017")
class EagerAttention(VanillaAttention):
    """Compute softmax(q k^T / sqrt(E)) v (CAB, Eq. 1) with separate operations, which store all N x M weights.

    The same function, options and decoding as ``vanilla``.
    """

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
        if is_causal:
            visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
        logits = (query * self.scale) @ key.transpose(2, 3)
        if visible is not None:
            logits = logits.masked_fill(~visible, float("-inf"))
        return F.dropout(logits.softmax(dim=-1), self.dropout, self.training) @ value


@register_attention("flash", patterns="NS CS NC CC", complexity="n^2", paper="Dao et al. 2022")
class FlashAttention(VanillaAttention):
    """Compute softmax(q k^T / sqrt(E)) v (CAB, Eq. 1) by the fused, tiled kernel, without N x M weights in memory.

    The same function, options and decoding as ``vanilla``, which leaves the kernel to torch.

    Raises:
        ValueError: when called where no flash kernel is: on a CPU with dropout, on CUDA in float32, elsewhere.
    """

    claims = Claims(softmax_limit=softmax_if(), float32_devices=("cpu",))

    def kernel(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, is_causal: bool) -> Tensor:
        if self.weight_dropout and query.device.type == "cpu":
            raise self._no_kernel(query)
        if query.device.type == "cuda" and visible is not None:
            if visible.shape[2] > 1:  # a prompt read in pieces; the kernel for CUDA takes no masks
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
