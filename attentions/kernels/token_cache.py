"""Caches of decoding that grow by the new tokens, with a mask of padding.

Shapes: B batch, H heads, n cached tokens, T new ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cab.attention import DecodeState


def empty_cache(batch_size: int, like: Tensor, **shapes: tuple[int, ...]) -> DecodeState:
    """Return an empty cache of tensors [B, H, 0, ...] from the shapes (H, ...), with the mask ``hidden`` [B, 0]."""
    empty = {name: like.new_empty(batch_size, heads, 0, *rest) for name, (heads, *rest) in shapes.items()}
    return {**empty, "hidden": like.new_zeros(batch_size, 0, dtype=torch.bool)}


def append_tokens(state: DecodeState, padding: Tensor | None, **new: Tensor) -> DecodeState:
    """Return the cache with new tensors [B, H, T, ...] appended by name; padding [B, T] is hidden."""
    count = next(iter(new.values())).shape[2]
    if padding is None:
        padding = state["hidden"].new_zeros(len(state["hidden"]), count)
    grown = {name: torch.cat([state[name].to(x.dtype), x], dim=2) for name, x in new.items()}
    return {**state, **grown, "hidden": torch.cat([state["hidden"], padding], dim=1)}


def masked_tokens(state: DecodeState, num_new: int) -> Tensor:
    """Return the mask of padding and later tokens for the last ``num_new`` cached ones, bool [B, 1, T, n]."""
    hidden = state["hidden"]
    past = hidden.shape[1] - num_new
    later = hidden.new_ones(num_new, hidden.shape[1]).triu(past + 1)
    return hidden[:, None, None] | later


def padding_last(state: DecodeState, *names: str) -> DecodeState:
    """Move the hidden tokens of a cache to its end, so that the index of a token is its position."""
    order = state["hidden"].to(torch.uint8).argsort(dim=1, stable=True)
    ordered = {name: gather_tokens(state[name], order) for name in names}
    return {**state, "hidden": state["hidden"].gather(1, order), **ordered}


def gather_tokens(x: Tensor, index: Tensor) -> Tensor:
    """Return the tokens at ``index`` [B, T] of ``x`` [B, H, S, E]: [B, H, T, E]."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def take_tokens(x: Tensor, start: Tensor, count: int) -> Tensor:
    """Return ``count`` tokens of [B, H, S, E] from ``start`` [B] on; values beyond the end are arbitrary."""
    index = (start[:, None] + torch.arange(count, device=x.device)).clamp(max=x.shape[2] - 1)
    return gather_tokens(x, index)


def packed(old: Tensor, count: Tensor, new: Tensor) -> Tensor:
    """Append ``new`` [B, H, T, E] to the first ``count`` [B] of ``old`` [B, H, S, E]: [B, H, S + T, E]."""
    index = torch.arange(old.shape[2] + new.shape[2], device=new.device)
    index = torch.where(index < count[:, None], index, index - count[:, None] + old.shape[2])
    return gather_tokens(torch.cat([old.to(new.dtype), new], dim=2), index.clamp(max=len(index[0]) - 1))
