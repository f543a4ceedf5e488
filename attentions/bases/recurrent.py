"""Base class of the recurrent attentions: a matrix state that every token updates, computed in blocks of tokens.

Shapes: B batch, H heads, N tokens, K key width and V value width per head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attentions.kernels.chunks import Extras as Extras, Heads, over_chunks
from attentions.kernels.norms import Activation, rms_norm
from attentions.kernels.numerics import upcast
from attentions.kernels.recurrence import Form, recurrence
from cab import Attention
from cab.attention import Convolved, Decoded, DecodeState, PaddingMasks, SizeArguments
from cab.convolution import HeadConvolutions
from cab.flash_linear_attention import SHORTEST
from cab.kernels import Operation
from cab.padding import lengths


class RecurrenceInputs(NamedTuple):
    """Inputs of the recurrence for every token.

    Attributes:
        query: [B, H or 1, N, K].
        key: [B, H or 1, N, K].
        value: [B, H, N, V].
        log_decay: [B or 1, H, N] per head, [B, H, N, K] per feature, or None for a state that does not decay.
        strength: write strength of a delta rule, [B, H, N] per head or [B, H, N, K] per feature.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor | None = None
    strength: Tensor | None = None


class Recurrent(Attention):
    """Recurrence S_t = exp(g_t) S_{t-1} + k_t (x) v_t, o_t = q_t S_t, followed by an RMS norm and ``out_proj``.

    A subclass computes q, k, v and g in ``terms`` from the heads and from tensors derived from the layer's
    inputs. It applies gates in ``finish``. Sums are computed in float32 or wider, and so are
    heads and gates unless a backend of the operation multiplies numbers of their type. A padded token neither writes
    nor decays. The layer has no attention weights, so ``dropout`` has no effect. No projection has a bias.

    The decoding state has constant size: S (H K V numbers) and, with short convolutions of kernel size W, the last
    W - 1 tokens of the unconvolved q, k and v.

    Attributes:
        norm_eps: added to the mean square in the RMS norm.
        normalizes_heads_jointly: whether the norm is over all heads jointly.
        gate_activation: function of the gate that follows the norm.
        activates_heads: whether silu follows the projections of q, k and v and their short convolutions.
        operation: computes the recurrence for all tokens.
        decays: what has a decay of its own, on which the backends of the operation depend.

    Args:
        key_expansion: width of the keys relative to ``embed_dim``; the width per head is rounded.
        value_expansion: width of the values relative to ``embed_dim``; the width per head is rounded.
        key_width: K, overrides ``key_expansion``.
        gate: whether to add a gate computed from the layer's input, as wide as the values.
        shares_keys: whether all heads share one query and one key.
        short_convolution: kernel size of the causal depthwise convolutions of q, k and v; 0 for none.
        conv_bias: whether these convolutions have a bias.
        gain: Xavier gain of the projections of the inputs; None for the initialization of ``nn.Linear``.
        out_gain: Xavier gain of ``out_proj``; None for the initialization of ``nn.Linear``.
        norm_has_weight: whether the norm has learnable weights.

    Raises:
        ValueError: for a ``short_convolution`` of 1 or below 0.
    """

    requires_right_padding = True
    has_constant_size_state = True
    normalizes_heads_jointly = False
    gate_activation: ClassVar[Activation] = "silu"
    activates_heads: ClassVar[bool] = False
    norm_eps: ClassVar[float] = 1e-5
    renamed: ClassVar = {"short_convolution": "conv_size"}
    operation: ClassVar[Operation[..., tuple[Tensor, Tensor]]] = recurrence
    decays: ClassVar[Literal["head", "feature", "nothing"]] = "head"

    def __init__(
        self,
        *,
        key_expansion: float = 1.0,
        value_expansion: float = 1.0,
        key_width: int | None = None,
        gate: bool = False,
        shares_keys: bool = False,
        short_convolution: int = 0,
        conv_bias: bool = False,
        gain: float | None = 2 ** (-0.5),
        out_gain: float | None = 1.0,
        norm_has_weight: bool = True,
        **common: Unpack[SizeArguments],
    ) -> None:
        super().__init__(**common)
        self.key_width = max(1, round(key_expansion * self.head_dim)) if key_width is None else key_width
        self.value_width = max(1, round(value_expansion * self.head_dim))
        self.key_heads = 1 if shares_keys else self.num_heads
        self.short_convolution = short_convolution
        keys, values = self.key_heads * self.key_width, self.num_heads * self.value_width
        self.q_proj = projection(self.embed_dim, keys, gain)
        self.k_proj = projection(self.embed_dim, keys, gain)
        self.v_proj = projection(self.embed_dim, values, gain)
        self.out_proj = projection(values, self.embed_dim, out_gain)
        self.has_gate = gate
        if gate:
            self.gate_proj = projection(self.embed_dim, values, gain)
        weights = torch.ones(values if self.normalizes_heads_jointly else self.value_width)
        self.norm_weight = nn.Parameter(weights) if norm_has_weight else None
        key, value = (self.key_heads, self.key_width), (self.num_heads, self.value_width)
        if short_convolution:
            self.convolutions = HeadConvolutions.of(
                {"query": key, "key": key, "value": value},
                short_convolution,
                bias=conv_bias,
                activation=self.activates_heads,
            )

    def make_projections(self) -> None:
        """Do nothing: the projections are created in the constructor, where their widths are known."""

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project [B, N, D] each to queries and keys [B, H or 1, N, K] and values [B, H, N, V]."""
        if query is key is value and self.convolutions is not None:  # which read the parts in place
            q, k, v = jointly(query, (self.q_proj, self.k_proj, self.v_proj))
        elif query is key and self.key_heads == 1:
            (q, k), v = jointly(query, (self.q_proj, self.k_proj)), self.v_proj(value)
        else:
            q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        queries, keys = (x.unflatten(-1, (self.key_heads, -1)).transpose(1, 2) for x in (q, k))
        return queries, keys, self.split_heads(v)

    def activated(self, heads: Heads) -> Heads:
        """Apply silu if ``activates_heads``, unless it is a part of the short convolutions."""
        return [F.silu(x) for x in heads] if self.activates_heads and self.convolutions is None else heads

    def query_side_inputs(self, query: Tensor) -> dict[str, Tensor]:
        """Compute the gate from the layer's input."""
        return {"gate": self.gate_proj(query)} if self.has_gate else {}

    # --- hooks of a subclass -----------------------------------------------------------------------------

    def terms(self, query: Tensor, key: Tensor, value: Tensor, extras: Extras, position: Tensor) -> RecurrenceInputs:
        """Compute the inputs of the recurrence from the activated heads; ``position`` [B or 1, N] counts from 0."""
        raise NotImplementedError

    def open_gates(self) -> None:
        """Slow decay and erasure by factors of 1e-4 and 1e-3, so that `cab verify` can observe far tokens."""
        terms = self.terms

        def opened(*arguments: Any) -> RecurrenceInputs:
            x = terms(*arguments)
            decay, strength = (
                None if y is None else y * scale for y, scale in ((x.log_decay, 1e-4), (x.strength, 1e-3))
            )
            return x._replace(log_decay=decay, strength=strength)

        self.terms = opened  # type: ignore[method-assign, assignment]

    def finish(self, output: Tensor, _value: Tensor, extras: Extras) -> Tensor:
        """Normalize o [B, H, N, V] and multiply it by the activated gate, if the layer has one."""
        return self.normalize(output, extras.get("gate"))

    def normalize(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """Compute the RMS norm of x [B, H, N, V], per head or over all heads, times the activated gate."""
        is_joint = self.normalizes_heads_jointly
        return rms_norm(
            x, self.norm_weight, gate, eps=self.norm_eps, activation=self.gate_activation, is_joint=is_joint
        )

    @classmethod
    def common_options(cls) -> dict[str, Any]:
        return {"short_convolution": 0}  # its gates are its own

    def convolve(
        self, heads: Sequence[Tensor], _padding: Tensor | None, _state: DecodeState | None = None
    ) -> Convolved:
        """Leave the heads to :meth:`decode_chunk`, which convolves them and does not store the results."""
        return heads, {}

    # --- in blocks of tokens -------------------------------------------------------------------------------

    def init_decode_state(self, batch_size: int, like: Tensor) -> DecodeState:
        """Return the initial state: ``memory`` S [B, H, K, V], ``length`` [B], and the inputs of the convolutions."""
        memory = upcast(like.new_zeros(batch_size, self.num_heads, self.memory_width, self.value_width))
        length = torch.zeros(batch_size, dtype=torch.long, device=like.device)
        past = {} if self.convolutions is None else self.convolutions.init_decode_state(batch_size, memory)
        return {"memory": memory, "length": length, **past}

    @property
    def memory_width(self) -> int:
        """Return the number of rows of S, the width of the keys of ``terms``."""
        return self.key_width

    def attend(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, **extras: Tensor) -> Tensor:
        state = self.init_decode_state(len(query), query)
        del state["length"]  # one count of positions for all sequences
        return self.decode(query, key, value, state, padding, **extras)[0]

    def decode(
        self, query: Tensor, key: Tensor, value: Tensor, state: DecodeState, padding: PaddingMasks, **extras: Tensor
    ) -> Decoded:
        """Compute the outputs of these tokens and the state after them."""
        with torch.autocast(query.device.type, enabled=False):
            output, state = over_chunks(self.decode_chunk, [query, key, value], padding.key, state, extras)
            return output.to(query.dtype), state

    def decode_chunk(self, heads: Heads, padding: Tensor | None, state: DecodeState, extras: Extras) -> Decoded:
        """Run :meth:`decode` for one chunk of tokens, whose terms are held in memory together."""
        inputs, extras = self.widened(heads, state, extras)
        inputs, past = super().convolve(inputs, padding, state)
        query, key, value = self.activated(inputs)
        position = torch.arange(query.shape[2], device=query.device)
        position = state["length"].unsqueeze(1) + position if "length" in state else position.unsqueeze(0)
        terms = self.mask_padding(self.terms(query, key, value, extras, position), padding)
        output, memory = self.update(terms, state["memory"], self.operation.rounding_to(heads[0].dtype))
        after = {"memory": memory, "length": tokens_read(state, query, padding), **past}
        return self.finish(output, value, extras), after

    def widened(self, heads: Heads, state: DecodeState, extras: Extras) -> tuple[Heads, Extras]:
        """Upcast heads and extras, unless a backend of the operation multiplies numbers of their type."""
        like, value = heads[0], heads[2]
        log_decay = {"head": value[..., 0], "feature": like, "nothing": None}[self.decays]
        if self.operation.choose(like.dtype, like, log_decay, state["memory"]) is not None:
            return heads, extras
        return list(map(upcast, heads)), {name: upcast(x) for name, x in extras.items()}

    def update(self, terms: RecurrenceInputs, memory: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        """Compute o of all tokens and S after the last one with ``form``, the operation."""
        return form(terms.query, terms.key, terms.value, terms.log_decay, memory)

    def mask_padding(self, terms: RecurrenceInputs, padding: Tensor | None) -> RecurrenceInputs:
        """Set the keys and log decays of padded tokens to zero; ``padding`` is [B, N]."""
        if padding is None:
            return terms
        decay, mask = terms.log_decay, padding[:, None]
        if decay is not None:
            decay = decay.masked_fill(mask if decay.dim() == 3 else mask.unsqueeze(-1), 0.0)
        return terms._replace(key=terms.key.masked_fill(mask.unsqueeze(-1), 0.0), log_decay=decay)

    # --- one token at a time-------------------------------------------------------------------------------

    def reference(self, query: Tensor, key: Tensor, value: Tensor, **extras: Tensor) -> Tensor:
        """Compute the recurrence of convolved heads of one row token by token, [H, n, ...] to [H, n, V]."""
        query, key, value = self.activated([query[None], key[None], value[None]])
        extras = {name: x[None] for name, x in extras.items()}
        terms = self.terms(query, key, value, extras, torch.arange(query.shape[2], device=query.device)[None])
        memory = value.new_zeros(1, self.num_heads, terms.key.shape[-1], self.value_width)
        outputs = []
        for t in range(query.shape[2]):
            now = RecurrenceInputs._make(None if x is None else x[:, :, t] for x in terms)
            memory = self.write(now, memory)
            outputs.append(torch.einsum("bhk,bhkv->bhv", now.query.expand(memory.shape[:3]), memory))
        return self.finish(torch.stack(outputs, dim=2), value, extras)[0]

    def write(self, now: RecurrenceInputs, memory: Tensor) -> Tensor:
        """Compute S_t from S_{t-1} [B, H, K, V] and the terms of one token, without the token dimension."""
        if now.log_decay is not None:
            decay = now.log_decay.exp()
            memory = memory * (decay[..., None, None] if decay.dim() == 2 else decay.unsqueeze(-1))
        return memory + now.key.unsqueeze(-1) * now.value.unsqueeze(-2)


def jointly(x: Tensor, maps: Sequence[nn.Module]) -> list[Tensor]:
    """Apply maps to x [B, N, D]; linear ones by one product on a GPU, which reads x once."""
    linear = [each for each in maps if type(each) is nn.Linear]
    if len(linear) < len(maps) or not x.is_cuda or x.shape[1] < SHORTEST:
        return [each(x) for each in maps]
    joint = F.linear(x, torch.cat([each.weight for each in linear]))
    parts = joint.split([each.out_features for each in linear], dim=-1)
    return [part if each.bias is None else part + each.bias.to(part) for part, each in zip(parts, linear, strict=True)]


def tokens_read(state: DecodeState, x: Tensor, padding: Tensor | None) -> Tensor:
    """Return how many tokens each sequence has after the heads x [B, H, N, E], [B]; ``state`` may lack ``length``."""
    return state["length"] + lengths(x, padding) if "length" in state else lengths(x, padding)


def projection(inputs: int, outputs: int, gain: float | None) -> nn.Linear:
    """Create a linear map without bias, Xavier uniform with ``gain`` or initialized as ``nn.Linear`` (None)."""
    return (
        nn.Linear(inputs, outputs, bias=False)
        if gain is None
        else xavier_linear(inputs, outputs, gain=gain, bias=False)
    )


def xavier_linear(inputs: int, outputs: int, *, gain: float = 1.0, bias: bool = True) -> nn.Linear:
    """Create a linear map with Xavier uniform weights and a bias of zero."""
    linear = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(linear.weight, gain=gain)
    if bias:
        nn.init.zeros_(linear.bias)
    return linear
