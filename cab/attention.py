"""The base class of every attention: projections, heads, padding, and decoding one token at a time.

Legend of shapes: B batch, N targets, M keys, D width, H heads, E = D / H width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cab.errors import UserError
from cab.patterns import Pattern

State = dict[str, Tensor]
"""What decoding has seen so far: named tensors, each with the batch as first dimension."""


@dataclass(frozen=True)
class SoftmaxLimit:
    """Sets of options that bring a method ever nearer to softmax attention, the last within ``tolerance``.

    The tolerance is a relative error, root mean square.
    """

    options: tuple[Mapping[str, Any], ...]
    tolerance: float = 1e-5


class Attention(nn.Module):
    """``(query, key, value) -> output``, drop-in for multi-head attention, built for one pattern.

    A subclass writes :meth:`attend` (on heads) and, beside it, :meth:`reference`, the same function from
    the paper's equations and slow. Everything else has a correct default: padded inputs are set to zero
    before the projections and padded outputs after them, so whatever stands in the padding (NaN included)
    reaches neither outputs nor gradients; decoding recomputes the prefix until the subclass knows better.

    Attributes a subclass may set, for the class or (``compacts_padding``) for an instance:

    * ``compacts_padding``: the method depends on positions (windows, segments, recurrences). Rows are then
      handed over with their padding moved to the right end, so a row with padding inside or on the left
      gives exactly what it gives alone.
    * ``autocast_dtypes``: lower precisions in which it works under ``torch.autocast``.
    * ``float32_devices``: where it works in float32 too, in which `cab verify` runs it.
    * ``parameter_budget``: what it may add to a backbone, as a part of it. CAB's rule is a tenth; a method that
      was published with more says how much.

    Args:
        pattern: NS, CS, NC or CC.
        embed_dim: width D of inputs and outputs.
        num_heads: heads H; must divide ``embed_dim``.
        dropout: probability in [0, 1) of dropping an attention weight, where the method has weights.

    Raises:
        ValueError: for dimensions that do not fit.
    """

    compacts_padding: bool = False
    autocast_dtypes: ClassVar[tuple[torch.dtype, ...]] = (torch.bfloat16, torch.float16)
    float32_devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    parameter_budget: ClassVar[float] = 0.1

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear

    def __init__(self, *, pattern: Pattern | str, embed_dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if embed_dim < 1 or num_heads < 1:
            raise UserError(f"embed_dim and num_heads must be at least 1, got {embed_dim} and {num_heads}")
        if embed_dim % num_heads:
            raise UserError(
                f"embed_dim {embed_dim} is not divisible by num_heads {num_heads}; "
                f"choose num_heads among the divisors of {embed_dim}"
            )
        if not 0.0 <= dropout < 1.0:
            raise UserError(f"dropout must be in [0, 1), got {dropout}")
        self.pattern = Pattern.parse(pattern)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.use_reference = False  # tests switch it on to run the readable form
        self.make_projections()

    # --- what a subclass writes -------------------------------------------------------------------------

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """The method itself, fast: query [B, H, N, E], key and value [B, H, M, E] to [B, H, N, E].

        Masks are bool, True = padding, [B, N] and [B, M]; padded entries of the inputs are projections of
        zeros, and padded outputs are discarded.
        """
        raise NotImplementedError(f"{type(self).__name__} must define attend()")

    def reference(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """The same function as :meth:`attend`, slow, written from the paper's equations."""
        raise NotImplementedError(f"{type(self).__name__} must define reference()")

    @classmethod
    def softmax_limit(cls, pattern: Pattern, num_tokens: int) -> SoftmaxLimit | None:  # noqa: ARG003
        """Options with which it is softmax attention on ``num_tokens`` tokens; None for a method that never is."""
        return None

    def make_projections(self) -> None:
        """The four learnt maps; initialised as in CAB: Xavier uniform, q, k, v with gain 1/sqrt(2)."""
        for name, gain in (("q_proj", 2**-0.5), ("k_proj", 2**-0.5), ("v_proj", 2**-0.5), ("out_proj", 1.0)):
            linear = nn.Linear(self.embed_dim, self.embed_dim)
            nn.init.xavier_uniform_(linear.weight, gain=gain)
            nn.init.zeros_(linear.bias)
            self.add_module(name, linear)

    # --- the contract -----------------------------------------------------------------------------------

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        query_padding_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """Attention of every target.

        Args:
            query: [B, N, D].
            key, value: [B, M, D] in cross patterns, None in self patterns.
            query_padding_mask, key_padding_mask: bool [B, N] and [B, M], True = padding. In a self pattern
                either one is the padding of the sequence.

        Returns:
            [B, N, D]; zero at padded targets.

        Raises:
            ValueError: with the shapes, for inputs that do not fit the pattern or each other.
        """
        self._check_inputs(query, key, value, query_padding_mask, key_padding_mask)
        if not self.pattern.is_cross:
            query_padding_mask = key_padding_mask = _union(query_padding_mask, key_padding_mask)
        query = without_padding(query, query_padding_mask)
        query_order = key_order = None
        if self.compacts_padding:
            query, query_padding_mask, query_order = compact_rows(query, query_padding_mask)
        if key is None or value is None:
            key = value = query
            key_padding_mask = query_padding_mask
        else:
            same = key is value
            key = without_padding(key, key_padding_mask)
            value = key if same else without_padding(value, key_padding_mask)
            if self.compacts_padding and key_padding_mask is not None:
                compact_key, compact_mask, key_order = compact_rows(key, key_padding_mask)
                assert key_order is not None
                value = compact_key if same else take_rows(value, key_order)
                key, key_padding_mask = compact_key, compact_mask
        output = self.compute(
            query, key, value, query_padding_mask=query_padding_mask, key_padding_mask=key_padding_mask
        )
        output = without_padding(output, query_padding_mask)
        return output if query_order is None else take_rows(output, query_order.argsort(dim=1))

    def compute(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        query_padding_mask: Tensor | None,
        key_padding_mask: Tensor | None,
    ) -> Tensor:
        """Project, split into heads, :meth:`attend`, merge, project: [B, N, D] to [B, N, D]."""
        attend = self.reference if self.use_reference else self.attend
        output = attend(
            self.split_heads(self.q_proj(query)),
            self.split_heads(self.k_proj(key)),
            self.split_heads(self.v_proj(value)),
            query_padding_mask=query_padding_mask,
            key_padding_mask=key_padding_mask,
        )
        return self.out_proj(self.merge_heads(output))

    def split_heads(self, x: Tensor) -> Tensor:
        """[B, N, D] to [B, H, N, E], a view."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def merge_heads(self, x: Tensor) -> Tensor:
        """[B, H, N, E] to [B, N, D]."""
        return x.transpose(1, 2).flatten(-2)

    @property
    def scale(self) -> float:
        """1 / sqrt(E), the usual factor of query-key products."""
        return 1.0 / math.sqrt(self.head_dim)

    # --- decoding ---------------------------------------------------------------------------------------

    def init_state(
        self,
        batch_size: int,
        *,
        key: Tensor | None = None,
        value: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """The state before the first token of a causal pattern.

        Args:
            batch_size: rows B.
            key, value, key_padding_mask: the source of the CC pattern, [B, M, D] and [B, M]; read once.
            device, dtype: of the tokens to come; those of the weights when not given.

        Raises:
            ValueError: in a noncausal pattern, which has no decoding.
        """
        self._check_decoding(batch_size, key, value, key_padding_mask)
        like = next(self.parameters(), torch.empty(0))
        empty = torch.empty(batch_size, 0, self.embed_dim, device=device or like.device, dtype=dtype or like.dtype)
        state = {"query": empty, "query_padding": empty.new_zeros(batch_size, 0, dtype=torch.bool)}
        if key is not None and value is not None:
            mask = key_padding_mask
            state |= {"key": key, "value": value}
            state["key_padding"] = key.new_zeros(key.shape[:2], dtype=torch.bool) if mask is None else mask
        return state

    def prefill(self, query: Tensor, state: State, *, query_padding_mask: Tensor | None = None) -> tuple[Tensor, State]:
        """Read several tokens at once: outputs [B, T, D] of the tokens ``query`` [B, T, D], and the new state.

        The state may already hold a prefix, so a long prompt can be read in pieces. Padded tokens
        (``query_padding_mask`` [B, T]) leave the row's state as it was and give zeros.
        """
        mask = query_padding_mask
        if mask is None:
            mask = query.new_zeros(query.shape[:2], dtype=torch.bool)
        state = dict(state)
        state["query"] = torch.cat([state["query"], query], dim=1)
        state["query_padding"] = torch.cat([state["query_padding"], mask], dim=1)
        output = self(
            state["query"],
            state.get("key"),
            state.get("value"),
            query_padding_mask=state["query_padding"],
            key_padding_mask=state.get("key_padding"),
        )
        return output[:, -query.shape[1] :], state

    def step(self, query_t: Tensor, state: State, *, query_padding_mask: Tensor | None = None) -> tuple[Tensor, State]:
        """Read one token: output of ``query_t`` ([B, D] or [B, 1, D], same shape back), and the new state.

        ``query_padding_mask`` [B] or [B, 1]: rows whose token is padding.
        """
        if query_t.dim() not in (2, 3) or (query_t.dim() == 3 and query_t.shape[1] != 1):
            raise UserError(f"step reads one token, [B, D] or [B, 1, D], got {tuple(query_t.shape)}")
        if query_padding_mask is not None:
            query_padding_mask = query_padding_mask.reshape(-1, 1)
        flat = query_t.dim() == 2
        query = query_t.unsqueeze(1) if flat else query_t
        output, state = self.prefill(query, state, query_padding_mask=query_padding_mask)
        return (output.squeeze(1) if flat else output), state

    @torch.no_grad()
    def state_bytes(self, num_tokens: int) -> int:
        """Bytes that decoding keeps for one row after ``num_tokens`` tokens: measured, by decoding zeros."""
        tokens = next(self.parameters(), torch.empty(0)).new_zeros(1, num_tokens, self.embed_dim)
        source = tokens[:, :1] if self.pattern.is_cross else None
        _, state = self.prefill(tokens, self.init_state(1, key=source, value=source))
        return sum(tensor.nbytes for tensor in state.values())

    # --- checks -----------------------------------------------------------------------------------------

    def _check_inputs(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        query_padding_mask: Tensor | None,
        key_padding_mask: Tensor | None,
    ) -> None:
        self._check_sequence("query", query)
        if self.pattern.is_cross:
            if key is None or value is None:
                raise UserError(f"pattern {self.pattern} is cross attention: give both key and value, [B, M, D]")
            self._check_sequence("key", key)
            self._check_sequence("value", value)
            if key.shape != value.shape or key.shape[0] != query.shape[0]:
                raise UserError(
                    "key and value must have the same shape [B, M, D] and the batch size of query, got "
                    f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
                )
        elif key is not None or value is not None:
            raise UserError(f"pattern {self.pattern} is self attention: leave key and value out, query is both")
        keys = query if key is None else key
        _check_mask("query_padding_mask", query_padding_mask, query)
        _check_mask("key_padding_mask", key_padding_mask, keys)

    def _check_sequence(self, name: str, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[-1] != self.embed_dim or 0 in x.shape:
            raise UserError(
                f"{name} must be [batch, length, {self.embed_dim}] with batch and length of at least 1, "
                f"got {tuple(x.shape)}"
            )

    def _check_tokens(self, query: Tensor, query_padding_mask: Tensor | None) -> None:
        self._check_sequence("query", query)
        _check_mask("query_padding_mask", query_padding_mask, query)

    def _check_decoding(
        self, batch_size: int, key: Tensor | None, value: Tensor | None, key_padding_mask: Tensor | None
    ) -> None:
        if not self.pattern.is_causal:
            raise UserError(f"pattern {self.pattern} is noncausal: only CS and CC decode token by token")
        if batch_size < 1:
            raise UserError(f"batch_size must be at least 1, got {batch_size}")
        if (self.pattern is Pattern.CC) != (key is not None and value is not None):
            raise UserError("init_state takes key and value in pattern CC, and neither in pattern CS")
        if key is not None and value is not None:
            self._check_sequence("key", key)
            self._check_sequence("value", value)
            _check_mask("key_padding_mask", key_padding_mask, key)

    def extra_repr(self) -> str:
        return f"pattern={self.pattern}, embed_dim={self.embed_dim}, num_heads={self.num_heads}"


def reorder_state(state: State, index: Tensor) -> State:
    """The state of rows ``index`` [B'], for beam search: any row may be dropped or repeated."""
    return {name: tensor.index_select(0, index) for name, tensor in state.items()}


def _check_mask(name: str, mask: Tensor | None, x: Tensor) -> None:
    if mask is not None and (mask.dtype is not torch.bool or mask.shape != x.shape[:2]):
        raise UserError(
            f"{name} must be bool {list(x.shape[:2])} with True = padding, got {mask.dtype} {list(mask.shape)}"
        )


def _union(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a | b


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """``x`` [B, N, D] with zeros where ``mask`` [B, N] is True."""
    return x if mask is None else x.masked_fill(mask.unsqueeze(-1), 0.0)


def compact_rows(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Move each row's padding to its right end: rows, mask, and the order [B, N] that was taken."""
    if mask is None:
        return x, None, None
    order = mask.to(torch.uint8).argsort(dim=1, stable=True)
    return take_rows(x, order), mask.gather(1, order), order


def take_rows(x: Tensor, order: Tensor) -> Tensor:
    """The positions ``order[b]`` of each row b of ``x`` [B, N, D]."""
    return x.gather(1, order.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
