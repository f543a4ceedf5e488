"""A causal method over a long sequence: some tokens at a time, after the state that those before them left.

Shapes: B batch, H heads, N tokens, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attentions.kernels.blocks import tokens_at_once
from cab.attention import DecodeState

Span = Callable[..., tuple[Tensor, DecodeState]]
"""``(*heads, padding, state, extras)`` to outputs and the state after them."""


def over_spans(
    span: Span,
    heads: Sequence[Tensor],
    padding: Tensor | None,
    state: DecodeState,
    extras: Mapping[str, Tensor],
) -> tuple[Tensor, DecodeState]:
    """``span`` of so many tokens as stay in a processor's cache, again and again; each is formed anew in the backward
    pass, so what is kept of a sequence is heads, extras, outputs, and a state for each span.

    Args:
        span: what one span computes.
        heads: [B, H, N, E] each, the last with all heads.
        padding: [B, N] or None.
        state: before the first token.
        extras: [B, N, ...] by name.
    """
    size = tokens_at_once(heads[-1].shape[:2].numel(), heads[-1].device)
    if heads[-1].shape[2] <= size:
        return span(*heads, padding, state, extras)
    pieces = [x.split(size, dim=2) for x in heads]
    masks = [None] * len(pieces[0]) if padding is None else padding.split(size, dim=1)
    more = {name: x.split(size, dim=1) for name, x in extras.items()}
    outputs = []
    for number, mask in enumerate(masks):
        given = [*(x[number] for x in pieces), mask, state, {name: x[number] for name, x in more.items()}]
        output, state = formed_anew(span, *given)
        outputs.append(output)
    return torch.cat(outputs, dim=2), state


def formed_anew(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)``, without random numbers, of which the backward pass forms again what it needs."""
    if not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
