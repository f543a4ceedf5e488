"""Adapter from CAB's attentions to fairseq's ``MultiheadAttention``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor, nn

from cab import Attention
from cab.attention import DecodeState, reorder_state

BUFFER = "attn_state"
"""fairseq's name for the decoding state of an attention."""


class FairseqAttention(FairseqIncrementalState, nn.Module):
    """Self or cross attention in fairseq's layout: time first, key masks, decoding with an incremental state.

    Parameters have the names of fairseq's own attention (``self_attn.q_proj.weight``), so checkpoints are
    interchangeable if the parameters agree, as for ``vanilla``.

    Attributes:
        query_padding_mask: [B, N] of the next call of a cross attention, to which fairseq gives that of the keys only.
    """

    get_incremental_state: Callable[..., DecodeState | None]
    set_incremental_state: Callable[..., Any]

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.num_heads = attention.num_heads
        self.head_dim = attention.head_dim
        self.query_padding_mask: Tensor | None = None
        self.register_state_dict_post_hook(_leave_out_prefix)
        self.register_load_state_dict_pre_hook(_put_in_prefix)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict[str, DecodeState] | None = None,
        need_weights: bool = False,  # noqa: ARG002
        need_head_weights: bool = False,  # noqa: ARG002
        static_kv: bool = False,  # noqa: ARG002
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """Map [N, B, D] to [N, B, D], without attention weights.

        With an ``incremental_state``, ``query`` contains the tokens after those in the state, and keys and values
        [M, B, D] of a cross attention are read once. ``attn_mask`` is fairseq's causal mask, which a causal attention
        applies itself.

        Raises:
            ValueError: keys of a self attention differ from the queries, or a noncausal attention receives a mask.
        """
        is_cross = self.attention.pattern.is_cross
        if not is_cross and (key is not query or value is not query):
            raise ValueError("CAB's attentions do not support --cross-self-attention; remove it")
        if attn_mask is not None and not self.attention.pattern.is_causal:
            raise ValueError(f"an attention with pattern {self.attention.pattern} does not support an attention mask")
        x = query.transpose(0, 1)
        mask = None if key_padding_mask is None else key_padding_mask.bool()
        source: dict[str, Tensor | None] = {}
        if is_cross:
            memory, padding = key.transpose(0, 1), self.query_padding_mask
            source, mask = {"key": memory, "value": memory, "key_padding_mask": mask}, padding
        if incremental_state is None:
            output = self.attention(x, query_padding_mask=mask, **source)
        else:
            state = self._get_input_buffer(incremental_state)
            if state is None:
                state = self.attention.init_state(len(x), device=x.device, dtype=x.dtype, **source)
            read = self.attention.step if x.shape[1] == 1 else self.attention.prefill
            output, state = read(x, state, query_padding_mask=mask)
            self._set_input_buffer(incremental_state, state)
        return output.transpose(0, 1), None

    def reorder_incremental_state(self, incremental_state: dict[str, DecodeState], new_order: Tensor) -> None:
        """Select the rows ``new_order``; called by fairseq's beam search."""
        state = self._get_input_buffer(incremental_state)
        if state is not None:
            self._set_input_buffer(incremental_state, reorder_state(state, new_order))

    def _get_input_buffer(self, incremental_state: dict[str, DecodeState] | None) -> DecodeState | None:
        return self.get_incremental_state(incremental_state, BUFFER)

    def _set_input_buffer(self, incremental_state: dict[str, DecodeState], buffer: DecodeState) -> None:
        self.set_incremental_state(incremental_state, BUFFER, buffer)


def _leave_out_prefix(module: nn.Module, weights: dict[str, Tensor], prefix: str, _: Any) -> None:  # noqa: ARG001
    _rename(weights, f"{prefix}attention.", prefix)


def _put_in_prefix(module: nn.Module, weights: dict[str, Tensor], prefix: str, *_: Any) -> None:  # noqa: ARG001
    _rename(weights, prefix, f"{prefix}attention.")


def _rename(weights: dict[str, Tensor], old: str, new: str) -> None:
    for name in [name for name in weights if name.startswith(old)]:
        weights[new + name.removeprefix(old)] = weights.pop(name)
