"""Softmax attention between neighboring chunks of sequences that are sorted by bucket: the published form of Reformer.

In each round, tokens are sorted by bucket, then position, and the sorted sequence is cut into chunks. A token attends
to the other tokens of its own chunk and of the chunk before. As in the released code, in which the rounds are one
sequence, the first chunk of a round follows the last chunk of the round before, and that of the first round follows
that of the last. The rounds share one softmax, in which each pair counts once.

Shapes: B rows, H heads, G rows times heads, R rounds, N tokens, E head dimension, C chunks of m tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attentions.kernels.common.precision import neg_inf, upcast


def chunk_attention(
    query: Tensor, key: Tensor, value: Tensor, buckets: Tensor, count: Tensor, size: int, *, dropout: float = 0.0
) -> Tensor:
    """Return softmax(q_i k_j / sqrt(E)) v_j over the keys of the chunks; a single token returns its value.

    Args:
        query, key, value: [B, H, N, E]; keys must not depend on other tokens.
        buckets: bucket of each token, largest for padding, [R, B, H, N].
        count: tokens of each row without padding, [B].
        size: tokens m per chunk.
        dropout: probability of dropping a weight.
    """
    chunks = Chunks.of(buckets.flatten(1, 2), count.repeat_interleave(query.shape[1]), size)
    q, k, v = (upcast(x).flatten(0, 1) for x in (query * query.shape[-1] ** -0.5, key, value))
    outputs, sums = [], []
    for number in range(len(buckets)):
        if torch.is_grad_enabled():
            found = checkpoint(
                _round, q, k, v, chunks, number, dropout, use_reentrant=False, preserve_rng_state=dropout > 0.0
            )
        else:
            found = _round(q, k, v, chunks, number, dropout)
        outputs.append(found[0])
        sums.append(found[1])
    shares = torch.stack(sums).softmax(dim=0)
    output = sum(share.unsqueeze(-1) * x for share, x in zip(shares, outputs, strict=True))
    output = torch.where((count.repeat_interleave(query.shape[1]) == 1)[:, None, None], v, output)
    return output.view_as(query).to(query.dtype)


class Chunks(NamedTuple):
    """Sorted sequences in chunks.

    Attributes:
        tokens: token of each slot of the sorted sequences, filled up to whole chunks, [R, G, C, m].
        exists: whether a slot has a token that is not padding, [G, C, m].
        chunk: chunk of each token, [R, G, N].
        slot: slot of each token, [R, G, N].
        last: last chunk of each row, [G].
    """

    tokens: Tensor
    exists: Tensor
    chunk: Tensor
    slot: Tensor
    last: Tensor

    @classmethod
    def of(cls, buckets: Tensor, count: Tensor, size: int) -> Chunks:
        """Sort and cut sequences with ``buckets`` [R, G, N], of which ``count`` [G] tokens are not padding."""
        order = buckets.argsort(dim=-1, stable=True)
        place = torch.arange(order.shape[-1], device=order.device)
        slot = torch.empty_like(order).scatter_(-1, order, place.expand_as(order))
        tokens = F.pad(order, (0, -order.shape[-1] % size)).unflatten(-1, (-1, size))
        slots = torch.arange(tokens.shape[2] * size, device=order.device).view(-1, size)
        last = (count - 1).clamp(min=0) // size
        return cls(tokens, slots < count[:, None, None], slot // size, slot, last)

    def with_previous(self, x: Tensor, before: Tensor) -> Tensor:
        """Join what slots [G, C, m] contain with the chunk before; ``before`` is that of the preceding round."""
        group = torch.arange(len(x), device=x.device)
        first = before[group, self.last].unsqueeze(1)
        return torch.cat([x, torch.cat([first, x[:, :-1]], dim=1)], dim=2)

    def meetings(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return how often pairs of tokens [G, C, m] and [G, C, 2 m] occur in all rounds, [G, C, m, 2 m]."""
        count = torch.zeros(*queries.shape, keys.shape[2], dtype=torch.int16, device=keys.device)
        for number, chunk in enumerate(self.chunk):
            of_query, of_key = (_at(chunk, x).to(torch.int16).unsqueeze(dim) for x, dim in ((queries, 3), (keys, 2)))
            count += ((of_query - of_key) >> 1) == 0  # the same chunk, or the one before
            is_last = _at(self.chunk[number - 1] == self.last.unsqueeze(1), keys).unsqueeze(2)
            count += (of_query == 0) & is_last
        return count


def _round(
    query: Tensor, key: Tensor, value: Tensor, chunks: Chunks, number: int, dropout: float
) -> tuple[Tensor, Tensor]:
    """Return the means [G, N, E] of one round and the logarithms of their sums of weights [G, N]."""
    queries = chunks.tokens[number]
    keys = chunks.with_previous(queries, chunks.tokens[number - 1])
    logits = _at(query, queries) @ _at(key, keys).mT
    logits = logits - chunks.meetings(queries, keys).clamp_(min=1).to(logits.dtype).log_()
    masked = ~chunks.with_previous(chunks.exists, chunks.exists).unsqueeze(2)
    masked = masked | (queries.unsqueeze(3) == keys.unsqueeze(2))
    logits = logits.masked_fill(masked, neg_inf(logits.dtype))
    weights = F.dropout(logits.softmax(dim=-1), dropout)
    slot = chunks.slot[number]
    means, sums = (weights @ _at(value, keys)).flatten(1, 2), logits.logsumexp(dim=-1).flatten(1, 2)
    return _at(means, slot), _at(sums, slot)


def _at(x: Tensor, index: Tensor) -> Tensor:
    """Return the tokens ``index`` [G, ...] of [G, N] or [G, N, E]."""
    flat = index.flatten(1)
    if x.dim() == 2:
        return x.gather(1, flat).view(index.shape)
    return x.gather(1, flat.unsqueeze(2).expand(-1, -1, x.shape[2])).view(*index.shape, x.shape[2])
