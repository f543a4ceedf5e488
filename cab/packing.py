"""Packed sequences: the sequences of a batch follow each other in one tensor, without padding.

Legend of shapes: T packed tokens, S sequences, N tokens of the longest sequence, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from cab.errors import UserError
from cab.training import TrainableModule, auxiliary_loss

PADDING_SHARE, FREE_PADDING = 0.25, 128
"""Padding that a group may contain: this fraction of its tokens, or this number if that is more."""


class PackedSequences(TrainableModule):
    """A module that computes packed sequences in padded batches; a method with a kernel for them overrides this."""

    embed_dim: int
    prefill: Callable[..., tuple[Tensor, dict[str, Tensor]]]

    def forward_packed(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        query_cu_seqlens: Tensor,
        key_cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Compute the outputs of S sequences, which follow each other in one tensor without padding.

        Sequences of similar length are padded to a batch, so short sequences do not cost as much as the longest. The
        lengths are read on the host, which synchronizes a GPU. The auxiliary loss is that of the sequences, weighted by
        their numbers of targets, as in a padded batch.

        Args:
            query: [T, D].
            key, value: [T', D] in cross patterns, None in self patterns.
            query_cu_seqlens: cumulative numbers of targets, integers [S + 1] from 0 to T, as in FlashAttention's
                variable-length interface; sequences may be empty.
            key_cu_seqlens: those of the keys in cross patterns.

        Returns:
            [T, D].

        Raises:
            ValueError: for cumulative lengths that do not fit the tensors or each other.
        """
        if (key is None) != (key_cu_seqlens is None) or (key is None) != (value is None):
            raise UserError("key, value and key_cu_seqlens belong together: pass all in a cross pattern, else none")
        targets = _spans("query", query, query_cu_seqlens, self.embed_dim)
        sources = [range(0)] * len(targets)
        if key is not None and value is not None and key_cu_seqlens is not None:
            sources = _spans("key", key, key_cu_seqlens, self.embed_dim)
            if key.shape != value.shape:
                raise UserError(f"key and value have different shapes: {tuple(key.shape)} and {tuple(value.shape)}")
            if len(sources) != len(targets):
                raise UserError(
                    f"query_cu_seqlens describes {len(targets)} sequences and key_cu_seqlens {len(sources)}"
                )
        outputs, positions, losses = [], [], [auxiliary_loss(self)]
        for group in _groups([(len(target), len(source)) for target, source in zip(targets, sources, strict=True)]):
            queries, query_mask = _padded(query, [targets[n] for n in group])
            if key is None or value is None:
                output = self(queries, query_padding_mask=query_mask)
            else:
                keys, key_mask = _padded(key, [sources[n] for n in group])
                values = keys if key is value else _padded(value, [sources[n] for n in group])[0]
                output = self(queries, keys, values, query_padding_mask=query_mask, key_padding_mask=key_mask)
            outputs.append(output[~query_mask])
            positions += [torch.arange(targets[n].start, targets[n].stop, device=query.device) for n in group]
            loss = auxiliary_loss(self)
            losses.append(None if loss is None else loss * (len(outputs[-1]) / len(query)))
        self._losses.extend(loss for loss in losses if loss is not None)
        if not outputs:
            return torch.zeros_like(query)
        return torch.cat(outputs)[torch.cat(positions).argsort()]

    def prefill_packed(
        self, query: Tensor, state: dict[str, Tensor], *, query_cu_seqlens: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Read one packed prompt per sequence of ``state``: outputs [T, D] and the new state of S sequences.

        An empty prompt leaves the state of its sequence unchanged.

        Raises:
            ValueError: for cumulative lengths that do not fit ``query`` [T, D].
        """
        prompts, mask = _padded(query, _spans("query", query, query_cu_seqlens, self.embed_dim))
        output, state = self.prefill(prompts, state, query_padding_mask=mask)
        return output[~mask], state


def _spans(name: str, x: Tensor, cu_seqlens: Tensor, width: int) -> list[range]:
    """Return the positions of each sequence in ``x`` [T, width]; UserError if the cumulative lengths do not fit."""
    if x.dim() != 2 or x.shape[-1] != width:
        raise UserError(f"packed {name} must be [tokens, {width}], got {tuple(x.shape)}")
    if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise UserError(
            f"{name}_cu_seqlens must be integers [sequences + 1], got {cu_seqlens.dtype} {list(cu_seqlens.shape)}"
        )
    ends = cu_seqlens.tolist()
    if ends[0] != 0 or ends[-1] != len(x) or ends != sorted(ends):
        raise UserError(f"{name}_cu_seqlens must rise from 0 to the number of tokens, {len(x)}, got {ends}")
    return [range(start, end) for start, end in pairwise(ends)]


def _groups(lengths: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Yield the numbers of the sequences that have targets in groups of similar ``lengths``, the longest first.

    The lengths are the numbers of targets and of keys of each sequence.
    """
    group: list[int] = []
    longest_query = longest_key = tokens = 0
    for n in sorted((n for n, (queries, _) in enumerate(lengths) if queries), key=lambda n: lengths[n])[::-1]:
        queries, keys = lengths[n]
        longest_query, longest_key = max(longest_query, queries), max(longest_key, keys)
        tokens += queries + keys
        padding = (len(group) + 1) * (longest_query + longest_key) - tokens
        if group and padding > max(PADDING_SHARE * tokens, FREE_PADDING):
            yield group
            group, longest_query, longest_key, tokens = [], queries, keys, queries + keys
        group.append(n)
    if group:
        yield group


def _padded(x: Tensor, spans: Sequence[range]) -> tuple[Tensor, Tensor]:
    """Return the sequences of ``x`` [T, D] as a batch [S, N, D], N at least 1, and its padding mask [S, N]."""
    starts = torch.tensor([span.start for span in spans], device=x.device)
    lengths = torch.tensor([len(span) for span in spans], device=x.device)
    offsets = torch.arange(max(1, *map(len, spans)), device=x.device)
    mask = offsets >= lengths[:, None]
    if not len(x):
        return x.new_zeros(*mask.shape, x.shape[-1]), mask
    return x[(starts[:, None] + offsets).masked_fill(mask, 0)], mask
