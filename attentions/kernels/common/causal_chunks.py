"""Causal methods over long sequences, a chunk of tokens at a time from the state after the previous chunk.

Shapes: B batch, H heads, N tokens, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from attentions.kernels.common.blocks import tokens_at_once
from attentions.kernels.common.checkpointing import recompute
from cab.attention import DecodeState

ChunkFunction = Callable[..., tuple[Tensor, DecodeState]]
"""Maps ``(*heads, padding, state, extras)`` to the outputs and the state after them."""


def over_chunks(
    function: ChunkFunction,
    heads: Sequence[Tensor],
    padding: Tensor | None,
    state: DecodeState,
    extras: Mapping[str, Tensor],
) -> tuple[Tensor, DecodeState]:
    """Apply ``function`` to chunks of tokens that fit in the processor cache, and recompute each in the backward pass.

    Only heads, extras, outputs and one state per chunk are stored.

    Args:
        function: computes one chunk.
        heads: [B, H, N, E] each, the last with all heads.
        padding: [B, N] or None.
        state: the state before the first token.
        extras: side inputs by name, [B, N, ...] each.
    """
    size = tokens_at_once(heads[-1].shape[:2].numel(), heads[-1].device)
    if heads[-1].shape[2] <= size:
        return function(*heads, padding, state, extras)
    chunks = [x.split(size, dim=2) for x in heads]
    masks = [None] * len(chunks[0]) if padding is None else padding.split(size, dim=1)
    more = {name: x.split(size, dim=1) for name, x in extras.items()}
    outputs = []
    for number, mask in enumerate(masks):
        given = [*(x[number] for x in chunks), mask, state, {name: x[number] for name, x in more.items()}]
        output, state = recompute(function, *given)
        outputs.append(output)
    return torch.cat(outputs, dim=2), state
