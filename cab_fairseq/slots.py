"""An attention of ours where fairseq expects its ``MultiheadAttention``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairseq.incremental_decoding_utils import FairseqIncrementalState
from torch import Tensor, nn

from cab import Attention
from cab.attention import DecodeState, reorder_state

BUFFER = "attn_state"
"""fairseq's name for what an attention remembers of the tokens it has read."""


class FairseqAttention(FairseqIncrementalState, nn.Module):
    """Self attention in fairseq's layout: time first, masks of the keys, decoding through an incremental state.

    Its weights have the names that fairseq's own attention gives them (``self_attn.q_proj.weight``), so a checkpoint
    of one opens in the other where the parameters are the same, as ``vanilla``'s are.
    """

    get_incremental_state: Callable[..., DecodeState | None]
    set_incremental_state: Callable[..., Any]

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.num_heads = attention.num_heads
        self.head_dim = attention.head_dim
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
        attn_mask: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        """[N, B, D] to [N, B, D] and no weights.

        With an ``incremental_state``, ``query`` is what comes after the tokens that the state has seen.
        ``attn_mask`` is fairseq's causal mask: a causal attention hides the future by itself.

        Raises:
            ValueError: keys that are not the queries, or a mask that a noncausal attention cannot keep.
        """
        if key is not query or value is not query:
            raise ValueError("CAB's attentions fill self attention slots: --cross-self-attention is not supported")
        if attn_mask is not None and not self.attention.pattern.is_causal:
            raise ValueError(f"pattern {self.attention.pattern} has no attention mask")
        x = query.transpose(0, 1)
        mask = None if key_padding_mask is None else key_padding_mask.bool()
        if incremental_state is None:
            output = self.attention(x, query_padding_mask=mask)
        else:
            state = self._get_input_buffer(incremental_state)
            if state is None:
                state = self.attention.init_state(len(x), device=x.device, dtype=x.dtype)
            read = self.attention.step if x.shape[1] == 1 else self.attention.prefill
            output, state = read(x, state, query_padding_mask=mask)
            self._set_input_buffer(incremental_state, state)
        return output.transpose(0, 1), None

    def reorder_incremental_state(self, incremental_state: dict[str, DecodeState], new_order: Tensor) -> None:
        """Keep the rows ``new_order``: called by fairseq's beam search."""
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
