"""Registered attentions as layers of models of flash-linear-attention (fla).

    from cab import FlaLayer

    model.model.layers[0].attn = FlaLayer("gla", hidden_size=1024, num_heads=4, layer_idx=0)

The decode state is stored in the cache of the model. This module does not import fla.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from cab.attention_types import DecodeState
from cab.errors import UserError
from cab.patterns import Pattern
from cab.registry.build import build_attention


class FlaLayer(nn.Module):
    """A registered attention in pattern CS, with the interface of the layers of flash-linear-attention.

    It replaces the attention of a block in a model of fla. Padding on either side, packed sequences, prompts in chunks
    and beam search are supported.

    Attributes:
        attention: the attention.

    Args:
        name: name of a registered attention, or ``FILE.py:Class``.
        hidden_size: width D of inputs and outputs.
        num_heads: number of heads; must divide ``hidden_size``.
        layer_idx: index of the layer in the cache.
        options: other arguments of :func:`cab.build_attention`: ``dropout``, ``layer_position``, and options of the
            attention.

    Raises:
        UserError: the name is unknown, the attention does not support pattern CS, or an option or dimension is invalid.
    """

    def __init__(self, name: str, *, hidden_size: int, num_heads: int, layer_idx: int, **options: Any) -> None:
        super().__init__()
        self.layer_idx = layer_idx
        self.attention = build_attention(
            name, pattern=Pattern.CS, embed_dim=hidden_size, num_heads=num_heads, **options
        )

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        *,
        cu_seqlens: Tensor | None = None,
        **_unused: Any,
    ) -> tuple[Tensor, None, Any]:
        """Compute the outputs of tokens that follow those in the cache.

        Args:
            hidden_states: [B, T, D].
            attention_mask: 0 at padding and 1 elsewhere, [B, L] with L >= T; the last T columns are used.
            past_key_values: cache of fla; read if it is given, and updated if ``use_cache`` is also true.
            use_cache: store the decode state after these tokens in ``past_key_values``.
            cu_seqlens: cumulative lengths [S + 1] of packed sequences, with B = 1; ``attention_mask`` is then ignored,
                and the cache contains S sequences.

        Returns:
            The outputs [B, T, D], zero at padding; None instead of attention weights; and ``past_key_values``.

        Raises:
            UserError: ``attention_mask`` or ``cu_seqlens`` does not fit ``hidden_states``.
        """
        batch_size, num_tokens, _ = hidden_states.shape
        compute: Callable[..., Tensor] = self.attention
        prefill: Callable[..., tuple[Tensor, DecodeState]] = self.attention.prefill
        if cu_seqlens is None:
            lengths: dict[str, Any] = {"query_padding_mask": padding_mask(attention_mask, hidden_states)}
            tokens = hidden_states
        elif batch_size == 1:
            lengths, batch_size = {"query_cu_seqlens": cu_seqlens}, len(cu_seqlens) - 1
            tokens, compute, prefill = hidden_states[0], self.attention.forward_packed, self.attention.prefill_packed
        else:
            raise UserError(f"cu_seqlens requires hidden_states of shape [1, T, D], got {tuple(hidden_states.shape)}")
        if past_key_values is None:
            output = compute(tokens, **lengths)
        else:
            output, state = prefill(tokens, self.cached_state(past_key_values, batch_size, tokens), **lengths)
            if use_cache:  # the state is in a tuple because the cache does not accept a dict
                past_key_values.update(recurrent_state=(state,), layer_idx=self.layer_idx, offset=num_tokens)
        return output.reshape_as(hidden_states), None, past_key_values

    def cached_state(self, cache: Any, batch_size: int, like: Tensor) -> DecodeState:
        """Return the state in the cache, or the state before the first token."""
        layer = cache[self.layer_idx] if len(cache) > self.layer_idx else None
        if layer is None or layer["recurrent_state"] is None:
            return self.attention.init_state(batch_size, device=like.device, dtype=like.dtype)
        (state,) = layer["recurrent_state"]
        return state


def padding_mask(attention_mask: Tensor | None, hidden_states: Tensor) -> Tensor | None:
    """Return the padding [B, T] of the last T tokens, True at padding, from a mask that is 0 at padding.

    Raises:
        UserError: the mask does not have two dimensions, or fewer columns than there are tokens.
    """
    if attention_mask is None:
        return None
    num_tokens = hidden_states.shape[1]
    if attention_mask.dim() != 2 or attention_mask.shape[1] < num_tokens:
        raise UserError(
            f"attention_mask must have the shape [B, L] with L at least {num_tokens}, the number of tokens; got "
            f"{tuple(attention_mask.shape)}"
        )
    return attention_mask[:, -num_tokens:] == 0
