"""Packed sequences: sequences of different lengths, one after the other in a single tensor without padding.

Shapes: S sequences, T tokens of all sequences together, D width. ``cu_seqlens`` [S + 1] are the cumulative lengths
0, n_1, n_1 + n_2, ..., T, as in FlashAttention's variable-length interface.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, starmap
from typing import NamedTuple

import torch
from torch import Tensor

from cab.attention_types import DecodeState
from cab.input_checks import check_packed
from cab.training import TrainableModule, auxiliary_loss

PADDING_SHARE, FREE_PADDING = 0.25, 128
"""Padding that a group may contain: this fraction of its tokens, or this number if that is more."""


class Borders(NamedTuple):
    """Position of one sequence in the packed queries and keys, as two half-open ranges."""

    query: tuple[int, int]
    key: tuple[int, int]

    @property
    def num_tokens(self) -> tuple[int, int]:
        """Numbers of targets and of keys."""
        return self.query[1] - self.query[0], self.key[1] - self.key[0]


class PackedAttention(TrainableModule):
    """The methods of :class:`cab.Attention` that take packed sequences; each sequence gives what it gives alone."""

    embed_dim: int
    prefill: Callable[..., tuple[Tensor, DecodeState]]

    def forward_packed(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        query_cu_seqlens: Tensor,
        key_cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Compute the output of every target, with each sequence on its own.

        Sequences of similar length are padded to a batch, so short sequences do not cost as much as the longest. The
        lengths are read on the host, which synchronizes a GPU. The auxiliary loss is that of the sequences, weighted by
        their numbers of targets, as in a padded batch.

        Args:
            query: [T, D].
            key, value: [T', D] in cross patterns, None in self patterns.
            query_cu_seqlens: cumulative numbers of targets, integers [S + 1]; sequences may be empty.
            key_cu_seqlens: those of the keys in cross patterns.

        Returns:
            [T, D].

        Raises:
            ValueError: for cumulative lengths that do not fit the tensors or each other.
        """
        check_packed(query, key, value, query_cu_seqlens, key_cu_seqlens, self.embed_dim)
        borders = _borders(query_cu_seqlens, key_cu_seqlens)
        found, places, losses = [], [], [auxiliary_loss(self)]
        for group in _groups(borders):
            queries, query_mask = _padded(query, [item.query for item in group])
            if key is None or value is None:
                output = self(queries, query_padding_mask=query_mask)
            else:
                keys, key_mask = _padded(key, [item.key for item in group])
                values = keys if key is value else _padded(value, [item.key for item in group])[0]
                output = self(queries, keys, values, query_padding_mask=query_mask, key_padding_mask=key_mask)
            found.append(output[~query_mask])
            loss = auxiliary_loss(self)
            losses.append(None if loss is None else loss * (len(found[-1]) / len(query)))
            places.append(torch.cat([torch.arange(*item.query, device=query.device) for item in group]))
        self._losses.extend(loss for loss in losses if loss is not None)
        if not found:
            return torch.zeros_like(query)
        return torch.cat(found)[torch.cat(places).argsort()]

    def prefill_packed(
        self, query: Tensor, state: DecodeState, *, query_cu_seqlens: Tensor
    ) -> tuple[Tensor, DecodeState]:
        """Read one packed prompt per sequence of ``state``: outputs [T, D] and the new state of S sequences.

        An empty prompt leaves the state of its sequence unchanged.

        Raises:
            ValueError: for cumulative lengths that do not fit ``query`` [T, D].
        """
        check_packed(query, None, None, query_cu_seqlens, None, self.embed_dim)
        prompts, mask = _padded(query, [item.query for item in _borders(query_cu_seqlens)])
        output, state = self.prefill(prompts, state, query_padding_mask=mask)
        return output[~mask], state


def _borders(query_cu_seqlens: Tensor, key_cu_seqlens: Tensor | None = None) -> list[Borders]:
    queries = list(pairwise(query_cu_seqlens.tolist()))
    keys = [(0, 0)] * len(queries) if key_cu_seqlens is None else pairwise(key_cu_seqlens.tolist())
    return list(starmap(Borders, zip(queries, keys, strict=True)))


def _groups(borders: Sequence[Borders]) -> Iterator[list[Borders]]:
    """Yield the sequences that have targets in groups of similar length, the longest first."""
    group: list[Borders] = []
    longest_query = longest_key = tokens = 0
    for item in sorted((item for item in borders if item.num_tokens[0]), key=lambda item: item.num_tokens)[::-1]:
        queries, keys = item.num_tokens
        longest_query, longest_key, tokens = (
            max(longest_query, queries),
            max(longest_key, keys),
            tokens + queries + keys,
        )
        padding = (len(group) + 1) * (longest_query + longest_key) - tokens
        if group and padding > max(PADDING_SHARE * tokens, FREE_PADDING):
            yield group
            group, longest_query, longest_key, tokens = [], queries, keys, queries + keys
        group.append(item)
    if group:
        yield group


def _padded(x: Tensor, borders: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Return the sequences of ``x`` [T, D] as a batch [S, N, D], N at least 1, and its padding mask [S, N]."""
    starts = torch.tensor([start for start, _ in borders], device=x.device)
    lengths = torch.tensor([end - start for start, end in borders], device=x.device)
    offsets = torch.arange(max(1, *(end - start for start, end in borders)), device=x.device)
    mask = offsets >= lengths[:, None]
    if not len(x):
        return x.new_zeros(*mask.shape, x.shape[-1]), mask
    return x[(starts[:, None] + offsets).masked_fill(mask, 0)], mask
