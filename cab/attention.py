"""The base class of every attention: projections, heads, padding, and decoding one token at a time.

Legend of shapes: B batch, N targets, M keys, T new tokens, D width, H heads, E = D / H width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from cab.claims import Claims
from cab.convolution import HeadConvolutions
from cab.errors import UserError
from cab.input_checks import check_decoding, check_dimensions, check_heads, check_inputs, check_sequence, check_step
from cab.packing import PackedSequences
from cab.padding import (
    PaddingMasks as PaddingMasks,
    clean_rows,
    real_tokens,
    restore_rows,
    take_rows,
    union,
    without_padding,
)
from cab.patterns import Pattern

DecodeState = dict[str, Tensor]
"""What decoding has read so far: named tensors, each with the batch as its first dimension."""

Decoded = tuple[Tensor, DecodeState]
"""The outputs of some tokens, and the state after them."""

Convolved = tuple[Sequence[Tensor], DecodeState]
"""Query, key and value of some tokens after the short convolutions, and the state of these after them."""


@dataclass(frozen=True)
class LayerPosition:
    """Position of an attention among the layers of its kind: number ``index`` of ``num_layers``."""

    index: int
    num_layers: int


SINGLE_LAYER = LayerPosition(0, 1)
"""The position of an attention that is in no network."""


class SizeArguments(TypedDict):
    """The constructor arguments of all attentions, for a class with its own convolutions and gate."""

    pattern: Pattern | str
    embed_dim: int
    num_heads: int
    dropout: NotRequired[float]


class ConvolutionArguments(SizeArguments):
    """Those of a class with a gate of its own."""

    short_convolution: NotRequired[int]


class CommonArguments(ConvolutionArguments):
    """The constructor arguments of the base class, for ``**common: Unpack[CommonArguments]``."""

    output_gate: NotRequired[bool]


def reorder_state(state: DecodeState, index: Tensor) -> DecodeState:
    """Return the state of sequences ``index`` [B'], as in beam search: any may be dropped or repeated."""
    return {name: tensor.index_select(0, index) for name, tensor in state.items()}


class Attention(PackedSequences):
    """Map ``(query, key, value)`` to outputs; a drop-in replacement for multi-head attention, built for one pattern.

    A subclass implements ``attend`` on heads and, next to it, ``reference``, the equations of the paper for one
    sequence. Everything else has a correct default: padded inputs are set to zero before the projections and padded
    outputs after them, so padding (NaN included) affects neither outputs nor gradients; decoding recomputes the prefix
    until the subclass has a ``decode``, from which ``attend`` follows in turn; packed sequences are padded.

    Methods of a subclass. They work on heads, query [B, H, N, E], key and value [B, H, M, E]; ``**extras`` are the
    tensors of the hooks below, each by its name:

    * ``attend(query, key, value, padding, **extras)`` -> [B, H, N, E]. Padding is projected zeros; its outputs are
      not used. By default, CS is ``decode`` from the initial state, and another pattern is ``decode_cross`` after
      ``encode_source``, without additional inputs.
    * ``reference(query, key, value, **extras)`` -> [H, n, E]: the same function of one sequence without padding, slow
      and readable: query [H, n, E], key and value [H, m, E].
    * Decoding in CS: ``init_decode_state(batch_size, like)`` -> the state before the first token, with the type and
      device of the tensor ``like``; ``decode(query, key, value, state, padding, **extras)`` -> (heads of these tokens,
      new state). Padding is at the right end of each sequence, and padded tokens must not enter the state.
    * Decoding in CC: ``encode_source(key, value, padding, **extras)`` -> state, and
      ``decode_cross(query, state, padding, **extras)`` -> (heads, new state).

    Hooks for additional inputs, each returning a mapping from names to tensors with the batch first:

    * ``query_side_inputs(x)``, ``key_side_inputs(x)``: tensors computed from the layer's inputs, [B, N, D] of the
      targets and [B, M, D] of the source, which are zero at padding: gates, decays, write strengths.
    * ``sample_noise(query, key, padding)``: the random numbers of one call, computed from the same inputs, so that
      ``attend`` and ``reference`` share them.
    * ``add_loss``, ``accumulate_statistics`` and ``update_buffers``, ``param_group_overrides``: see
      :mod:`cab.training`.

    A constructor with an argument ``layer_position`` receives the :class:`LayerPosition` of its layer.

    Attributes:
        requires_right_padding: the method depends on positions (windows, segments, recurrences). Padding is then moved
            to the right end of each sequence first, so a sequence with padding gives exactly what it gives alone.
        has_constant_size_state: the decode state has the same size after every token.
        autocast_dtypes: lower precisions in which the method works under ``torch.autocast``.
        claims: what `cab verify` is to allow or to check in addition, see :class:`cab.claims.Claims`.

    Args:
        pattern: NS, CS, NC or CC.
        embed_dim: width D of inputs and outputs.
        num_heads: heads H; must divide ``embed_dim``.
        dropout: probability in [0, 1) of dropping an attention weight, where the method has weights.
        short_convolution: kernel size of causal depthwise convolutions of the projected queries, keys and values
            (So et al. 2021); 0 for none. In NS and CS, in a class that computes from these heads.
        output_gate: multiply the heads by sigmoid(x W_g), x the layer's input (Qiu et al. 2025).

    Raises:
        ValueError: if the dimensions do not fit each other, or an option is out of its range.
    """

    reference: Callable[..., Tensor] | None = None
    init_decode_state: Callable[..., DecodeState] | None = None
    decode: Callable[..., Decoded]
    encode_source: Callable[..., DecodeState] | None = None
    decode_cross: Callable[..., Decoded]

    requires_right_padding: bool = False
    has_constant_size_state: ClassVar[bool] = False
    autocast_dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.bfloat16, torch.float16)
    claims: Claims = Claims()

    def _attend_by_decoding(
        self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks, **extras: Tensor
    ) -> Tensor:
        if self.pattern is Pattern.CS and self.init_decode_state is not None:
            return self.decode(query, key, value, self.init_decode_state(len(query), query), padding, **extras)[0]
        if self.pattern is Pattern.CS or self.encode_source is None or extras:
            raise NotImplementedError(f"{type(self).__name__} has no attend() for pattern {self.pattern}")
        return self.decode_cross(query, self.encode_source(key, value, padding), padding)[0]

    attend: Callable[..., Tensor] = _attend_by_decoding

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        short_convolution: int = 0,
        output_gate: bool = False,
    ) -> None:
        super().__init__()
        check_dimensions(embed_dim, num_heads, dropout)
        self.pattern = Pattern.parse(pattern)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.use_reference = False  # tests set it to run the readable form
        self.make_projections()
        self.short_convolution = short_convolution
        self.convolutions: HeadConvolutions | None = None
        self.make_convolutions()
        self.output_gate: nn.Linear | None = None
        if output_gate:
            self.make_output_gate()

    @classmethod
    def common_options(cls) -> dict[str, Any]:
        """Return the defaults of ``short_convolution`` and ``output_gate``, in a class that computes from heads."""
        has_heads = cls.compute is Attention.compute and cls.decode_inputs is Attention.decode_inputs
        return {"short_convolution": 0, "output_gate": False} if has_heads else {}

    def make_convolutions(self) -> None:
        """Create the short convolutions, if any; call it again after a projection of another width is created."""
        if not self.short_convolution:
            return
        if self.pattern.is_cross or "short_convolution" not in self.common_options():
            reason = f"pattern {self.pattern}" if self.pattern.is_cross else type(self).__name__
            raise UserError(f"short_convolution is not supported in {reason}, got {self.short_convolution}")
        maps = {"query": self.q_proj, "key": self.k_proj, "value": self.v_proj}
        heads = {name: self.split_heads(x.weight.T[:1, None]) for name, x in maps.items() if isinstance(x, nn.Linear)}
        shapes = {name: (x.shape[1], x.shape[3]) for name, x in heads.items()}
        self.convolutions = HeadConvolutions.of(shapes, self.short_convolution)

    def make_output_gate(self) -> None:
        """Create the map of the output gate."""
        if "output_gate" not in self.common_options():
            raise UserError(f"output_gate is not supported in {type(self).__name__}, got True")
        self.output_gate = nn.Linear(self.embed_dim, self.embed_dim, bias=False)
        nn.init.xavier_uniform_(self.output_gate.weight, gain=2**-0.5)

    def gated(self, heads: Tensor, x: Tensor) -> Tensor:
        """Multiply heads [B, H, N, E] by the output gate of the targets' inputs [B, N, D], if any."""
        if self.output_gate is None:
            return heads
        return heads * self.output_gate(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2).sigmoid()

    def convolve(self, heads: Sequence[Tensor], padding: Tensor | None, state: DecodeState | None = None) -> Convolved:
        """Apply the short convolutions, if any, to projected heads after ``state`` (None: from the first token)."""
        if self.convolutions is None:
            return heads, {}
        before = self.convolutions.init_decode_state(len(heads[0]), heads[0]) if state is None else state
        return self.convolutions(heads, before, padding)

    def convolve_row(self, heads: Sequence[Tensor]) -> Sequence[Tensor]:
        """Apply the short convolutions, if any, to heads [1, H, n, E] of a whole row in their readable form."""
        return heads if self.convolutions is None else self.convolutions.reference(heads)

    def make_projections(self) -> None:
        """Create the four projections: Xavier uniform, q, k, v with gain 1/sqrt(2), as most of CAB's classes do.

        CAB's cosFormer and ProbSparse keep torch's default instead: biased, and 0.82 (q, k, v) and 0.58 (out) times as
        wide. Networks with an initialization of their own for all linear maps overwrite these.
        """
        for name, gain in (("q_proj", 2**-0.5), ("k_proj", 2**-0.5), ("v_proj", 2**-0.5), ("out_proj", 1.0)):
            linear = nn.Linear(self.embed_dim, self.embed_dim)
            nn.init.xavier_uniform_(linear.weight, gain=gain)
            nn.init.zeros_(linear.bias)
            self.add_module(name, linear)

    def query_side_inputs(self, _query: Tensor) -> dict[str, Tensor]:
        """Compute additional inputs of ``attend`` from the targets' inputs [B, N, D]."""
        return {}

    def key_side_inputs(self, _key: Tensor) -> dict[str, Tensor]:
        """Compute additional inputs from the source's inputs [B, M, D]; in self patterns the targets are the source."""
        return {}

    def sample_noise(self, _query: Tensor, _key: Tensor, _padding: PaddingMasks) -> dict[str, Tensor]:
        """Draw the random numbers of one call from its inputs [B, N, D] and [B, M, D]."""
        return {}

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project [B, N, D] and twice [B, M, D] to heads."""
        projected = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        q, k, v = map(self.split_heads, projected)
        return q, k, v

    def split_heads(self, x: Tensor) -> Tensor:
        """View [B, N, H E], of any width E, as [B, H, N, E]."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def merge_heads(self, x: Tensor) -> Tensor:
        """Merge [B, H, N, E] to [B, N, D]."""
        return x.transpose(1, 2).flatten(-2)

    @property
    def weight_dropout(self) -> float:
        """The current probability of dropping an attention weight: 0 in evaluation."""
        return self.dropout if self.training else 0.0

    @property
    def scale(self) -> float:
        """1 / sqrt(E), the usual factor of query-key products."""
        return 1.0 / math.sqrt(self.head_dim)

    def extra_repr(self) -> str:
        return f"pattern={self.pattern}, embed_dim={self.embed_dim}, num_heads={self.num_heads}"

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        query_padding_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Compute the output of every target.

        Args:
            query: [B, N, D].
            key, value: [B, M, D] in cross patterns, None in self patterns.
            query_padding_mask, key_padding_mask: bool [B, N] and [B, M], True = padding. In a self pattern either one
                is the padding of the sequence.

        Returns:
            [B, N, D]; zero at padded targets.

        Raises:
            ValueError: with the shapes, for inputs that do not fit the pattern or each other.
        """
        check_inputs(self.pattern, query, key, value, query_padding_mask, key_padding_mask, self.embed_dim)
        if not self.pattern.is_cross:
            query_padding_mask = key_padding_mask = union(query_padding_mask, key_padding_mask)
        compacts = self.requires_right_padding or self.convolutions is not None
        query, query_padding_mask, order = clean_rows(query, query_padding_mask, compacts=compacts)
        if key is None or value is None:
            key = value = query
            key_padding_mask = query_padding_mask
        else:
            key, value, key_padding_mask = self.clean_source(key, value, key_padding_mask)
        compute = self._compute_rows if self.use_reference else self.compute
        output = compute(query, key, value, PaddingMasks(query_padding_mask, key_padding_mask))
        return restore_rows(without_padding(output, query_padding_mask), order)

    def compute(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        """Project, split into heads, ``attend``, merge and project: [B, N, D] to [B, N, D]."""
        extras = {
            **self.query_side_inputs(query),
            **self.key_side_inputs(key),
            **self.sample_noise(query, key, padding),
        }
        if extras or self.convolutions is not None:
            projected, _ = self.convolve(self.project(query, key, value), padding.key)
            heads = self.attend(*projected, padding, **extras)
        else:  # Spelled out, the projections belong to ``attend`` alone, which frees each once it is read.
            heads = self.attend(
                self.split_heads(self.q_proj(query)),
                self.split_heads(self.k_proj(key)),
                self.split_heads(self.v_proj(value)),
                padding,
            )
        check_heads(self, heads, query, getattr(self.out_proj, "in_features", self.embed_dim))
        return self.out_proj(self.merge_heads(self.gated(heads, query)))

    def compute_row(self, query: Tensor, key: Tensor, value: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        """Compute one sequence without padding by ``reference``: [n, D] and twice [m, D] to [n, D]."""
        if self.reference is None:
            raise NotImplementedError(f"{type(self).__name__} has no reference()")
        heads = [x[0] for x in self.convolve_row(self.project(query[None], key[None], value[None]))]
        extras = {**self.query_side_inputs(query[None]), **self.key_side_inputs(key[None])}
        output = self.reference(*heads, **{name: x[0] for name, x in extras.items()}, **draws)[None]
        return self.out_proj(self.merge_heads(self.gated(output, query[None])))[0]

    def _compute_rows(self, query: Tensor, key: Tensor, value: Tensor, padding: PaddingMasks) -> Tensor:
        """Apply :meth:`compute_row` to each sequence; without any key the last projection gets zeros."""
        noise = self.sample_noise(query, key, padding)
        outputs = torch.zeros_like(query)
        for row in range(len(query)):
            targets, keys = real_tokens(query, padding.query)[row], real_tokens(key, padding.key)[row]
            if not targets.any():
                continue
            if keys.any():
                draws = {name: x[row] for name, x in noise.items()}
                output = self.compute_row(query[row, targets], key[row, keys], value[row, keys], draws)
            else:
                output = self.out_proj(torch.zeros_like(query[row, targets]))
            outputs = outputs.index_put((torch.tensor(row, device=query.device), targets.nonzero()[:, 0]), output)
        return outputs

    def clean_source(self, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Set the padding of key and value to zero, at the right end if the method needs that; return the mask too."""
        compact, compact_mask, order = clean_rows(key, mask, compacts=self.requires_right_padding)
        if key is value:
            return compact, compact, compact_mask
        value = without_padding(value, mask)
        return compact, value if order is None else take_rows(value, order), compact_mask

    def init_state(
        self,
        batch_size: int,
        *,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> DecodeState:
        """Return the state before the first token of a causal pattern.

        Args:
            batch_size: number of sequences B.
            key, value, key_padding_mask: source of the CC pattern, [B, M, D] and bool [B, M]; read once.
            device, dtype: those of the tokens to come; by default those of the weights.

        Raises:
            ValueError: in a noncausal pattern, which cannot decode.
        """
        check_decoding(self.pattern, batch_size, key, value, key_padding_mask, self.embed_dim)
        weight = next(self.parameters(), torch.empty(0))
        like = torch.empty(0, device=device or weight.device, dtype=dtype or weight.dtype)
        source: DecodeState = {}
        if key is not None and value is not None:
            if self.encode_source is not None:
                return self.encode_source_inputs(*self.clean_source(key, value, key_padding_mask))
            source = {"key": key, "value": value, "key_padding": ~real_tokens(key, key_padding_mask)}
        elif self.init_decode_state is not None:
            past = {} if self.convolutions is None else self.convolutions.init_decode_state(batch_size, like)
            return {**past, **self.init_decode_state(batch_size, like)}
        prefix = like.new_empty(batch_size, 0, self.embed_dim)
        return {"query": prefix, "query_padding": ~real_tokens(prefix, None), **source}

    def prefill(self, query: Tensor, state: DecodeState, *, query_padding_mask: Tensor | None = None) -> Decoded:
        """Read several tokens at once: outputs [B, T, D] of the tokens ``query`` [B, T, D], and the new state.

        The state may already hold a prefix, so a long prompt can be read in chunks. Padded tokens
        (``query_padding_mask`` [B, T]) leave the state of their sequence unchanged and give zeros.
        """
        check_sequence("query", query, query_padding_mask, self.embed_dim)
        if (self.encode_source if self.pattern.is_cross else self.init_decode_state) is None:
            return self._recompute_prefix(query, state, query_padding_mask)
        # Of a strided slice, a linear map with a bias rounds the product and the sum, each to bfloat16.
        tokens, mask, order = clean_rows(query.contiguous(), query_padding_mask, compacts=True)
        output, state = self.decode_inputs(tokens, mask, state)
        return restore_rows(without_padding(output, mask), order), state

    def encode_source_inputs(self, key: Tensor, value: Tensor, mask: Tensor | None) -> DecodeState:
        """Return the state before the first token of CC, from inputs [B, M, D] whose padding is zero."""
        assert self.encode_source is not None
        heads = self.split_heads(self.k_proj(key)), self.split_heads(self.v_proj(value))
        return self.encode_source(*heads, PaddingMasks(key=mask), **self.key_side_inputs(key))

    def decode_inputs(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Decoded:
        """Read tokens [B, T, D] for :meth:`prefill`; their padding is zero and at the right end of each sequence.

        A method without heads overrides this instead of ``decode``.
        """
        extras = self.query_side_inputs(tokens)
        if self.pattern.is_cross:
            query = self.split_heads(self.q_proj(tokens))
            heads, state = self.decode_cross(query, state, PaddingMasks(query=mask), **extras)
        else:
            extras = {**extras, **self.key_side_inputs(tokens)}
            projected, past = self.convolve(self.project(tokens, tokens, tokens), mask, state)
            heads, state = self.decode(*projected, state, PaddingMasks(mask, mask), **extras)
            state = {**state, **past}
        return self.out_proj(self.merge_heads(self.gated(heads, tokens))), state

    def step(self, query_t: Tensor, state: DecodeState, *, query_padding_mask: Tensor | None = None) -> Decoded:
        """Read one token: output of ``query_t`` ([B, D] or [B, 1, D], same shape returned), and the new state.

        ``query_padding_mask`` [B] or [B, 1] marks sequences whose token is padding.
        """
        check_step(query_t)
        if query_padding_mask is not None:
            query_padding_mask = query_padding_mask.reshape(-1, 1)
        flat = query_t.dim() == 2
        query = query_t.unsqueeze(1) if flat else query_t
        output, state = self.prefill(query, state, query_padding_mask=query_padding_mask)
        return (output.squeeze(1) if flat else output), state

    def _recompute_prefix(self, query: Tensor, state: DecodeState, mask: Tensor | None) -> Decoded:
        """Decode with a method that has no ``decode``: the state is the prefix."""
        new = {"query": query, "query_padding": ~real_tokens(query, mask)}
        state = state | {name: torch.cat([state[name], x], dim=1) for name, x in new.items()}
        masks = {"query_padding_mask": state["query_padding"], "key_padding_mask": state.get("key_padding")}
        output = self(state["query"], state.get("key"), state.get("value"), **masks)
        return output[:, -query.shape[1] :], state
