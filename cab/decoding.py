"""Decoding token by token: what a causal attention keeps, and how it reads on.

Legend of shapes: B batch, T new tokens, M keys, D width, H heads, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from cab.errors import UserError
from cab.heads import Heads
from cab.input_checks import check_decoding, check_tokens
from cab.padding import Padding, compact_rows, restore_rows, take_rows, without_padding

State = dict[str, Tensor]
"""What decoding has seen so far: named tensors, each with the batch as first dimension."""


class Decoding(Heads):
    """``init_state``, ``prefill`` and ``step`` for :class:`cab.Attention`.

    They check, move padding to the right end of the rows, project to heads, and put outputs back in their order; a
    method adds what it does on heads (``start`` and ``decode``, ``read_source`` and ``decode_cross``). Without them the
    prefix is kept and computed anew. One that has no heads writes ``advance`` instead of ``decode``.
    """

    compacts_padding: bool = False
    constant_state: ClassVar[bool] = False

    start: Callable[..., State] | None = None
    decode: Callable[..., tuple[Tensor, State]]
    read_source: Callable[..., State] | None = None
    decode_cross: Callable[..., tuple[Tensor, State]]

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
        check_decoding(self.pattern, batch_size, key, value, key_padding_mask, self.embed_dim)
        weight = next(self.parameters(), torch.empty(0))
        like = torch.empty(0, device=device or weight.device, dtype=dtype or weight.dtype)
        if key is None or value is None:
            return self._empty_prefix(batch_size, like) if self.start is None else self.start(batch_size, like)
        if self.read_source is None:
            mask = key.new_zeros(key.shape[:2], dtype=torch.bool) if key_padding_mask is None else key_padding_mask
            prefix = self._empty_prefix(batch_size, like.to(key.device))
            return {**prefix, "key": key, "value": value, "key_padding": mask}
        return self.read_source_inputs(*self.clean_source(key, value, key_padding_mask))

    def prefill(self, query: Tensor, state: State, *, query_padding_mask: Tensor | None = None) -> tuple[Tensor, State]:
        """Read several tokens at once: outputs [B, T, D] of the tokens ``query`` [B, T, D], and the new state.

        The state may already hold a prefix, so a long prompt can be read in pieces. Padded tokens
        (``query_padding_mask`` [B, T]) leave the row's state as it was and give zeros.
        """
        check_tokens(query, query_padding_mask, self.embed_dim)
        if (self.read_source if self.pattern.is_cross else self.start) is None:
            return self._recompute_prefix(query, state, query_padding_mask)
        tokens, mask, order = clean_rows(query, query_padding_mask, compacts=True)
        output, state = self.advance(tokens, mask, state)
        return restore_rows(without_padding(output, mask), order), state

    def read_source_inputs(self, key: Tensor, value: Tensor, mask: Tensor | None) -> State:
        """The state before the first token of CC, from inputs [B, M, D] whose padding is zero."""
        assert self.read_source is not None
        heads = self.split_heads(self.k_proj(key)), self.split_heads(self.v_proj(value))
        return self.read_source(*heads, Padding(key=mask), **self.key_extras(key))

    def advance(self, tokens: Tensor, mask: Tensor | None, state: State) -> tuple[Tensor, State]:
        """:meth:`prefill` of tokens [B, T, D] whose padding is zero and at the right end of each row."""
        extras = self.query_extras(tokens)
        if self.pattern.is_cross:
            query = self.split_heads(self.q_proj(tokens))
            heads, state = self.decode_cross(query, state, Padding(query=mask), **extras)
        else:
            extras = {**extras, **self.key_extras(tokens)}
            heads, state = self.decode(*self.project(tokens, tokens, tokens), state, Padding(mask, mask), **extras)
        return self.out_proj(self.merge_heads(heads)), state

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
        state = self.init_state(1, key=source, value=source)
        if not self.constant_state:
            _, state = self.prefill(tokens, state)
        return sum(tensor.nbytes for tensor in state.values())

    def _empty_prefix(self, batch_size: int, like: Tensor) -> State:
        empty = like.new_empty(batch_size, 0, self.embed_dim)
        return {"query": empty, "query_padding": empty.new_zeros(batch_size, 0, dtype=torch.bool)}

    def _recompute_prefix(self, query: Tensor, state: State, mask: Tensor | None) -> tuple[Tensor, State]:
        """Decoding of a method that has none of its own: the state is the prefix."""
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

    def clean_source(self, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Key and value with zeros in the padding, moved to the right end where the method wants it; and the mask."""
        compact, compact_mask, order = clean_rows(key, mask, compacts=self.compacts_padding)
        if key is value:
            return compact, compact, compact_mask
        value = without_padding(value, mask)
        return compact, value if order is None else take_rows(value, order), compact_mask


def clean_rows(x: Tensor, mask: Tensor | None, *, compacts: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Zeros in the padding, which is moved to the right end if asked for: rows, mask, and the order taken."""
    x = without_padding(x, mask)
    return compact_rows(x, mask) if compacts else (x, mask, None)


def reorder_state(state: State, index: Tensor) -> State:
    """The state of rows ``index`` [B'], for beam search: any row may be dropped or repeated."""
    return {name: tensor.index_select(0, index) for name, tensor in state.items()}
