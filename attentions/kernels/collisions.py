"""Sums of values over the keys whose hash code equals that of the query, over several hashes.

Codes are integers from 0 to the number of buckets; the last of these values marks padding, which collides with
nothing. Sums of values are written to and read from one table per hash, in time linear in the number of tokens. The
gradient of YOSO weights every colliding pair, so its time also grows with the number of these pairs; where more than
one pair in four collides, all pairs are formed, some queries at a time.

Shapes: m hashes, G rows times heads, N queries, M keys, E head dimension.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

TABLE_ELEMENTS = 2**22
"""Elements of the tables in memory at once, if one hash needs fewer."""

PAIRS = 2**16
"""Colliding pairs in memory at once."""

SPARSE = 4
"""All pairs are formed if their number is below this factor times the number of collisions."""


def collision_sums(query: Tensor, key: Tensor, value: Tensor, codes: tuple[Tensor, Tensor], num_buckets: int) -> Tensor:
    """Return the mean over hashes of the sums of values in the buckets of the queries, [G, N, E].

    The gradient is that of YOSO (section 3.3): the derivative of the weight of a pair by the inner product of query and
    key is the weight, the share of hashes in which the pair collides.

    Args:
        query, key, value: [G, N, E] and twice [G, M, E]; query and key matter for the gradient alone.
        codes: codes of the queries, [m, G, N], and of the keys, [m, G, M].
        num_buckets: number of buckets, the code of padding.
    """
    return _Collisions.apply(query, key, value, *codes, num_buckets)


def collision_counts(query_codes: Tensor, key_codes: Tensor, num_buckets: int) -> Tensor:
    """Return the number of hashes in which queries [m, ..., N] and keys [m, ..., M] collide, [..., N, M]."""
    count = torch.zeros(*query_codes.shape[1:], key_codes.shape[-1], dtype=torch.int16, device=query_codes.device)
    for of_query, of_key in zip(query_codes, key_codes, strict=True):
        of_key = of_key.where(of_key < num_buckets, -1)  # padded keys collide with nothing
        count += of_query.unsqueeze(-1) == of_key.unsqueeze(-2)
    return count


class _Collisions(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        query_codes: Tensor,
        key_codes: Tensor,
        num_buckets: int,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, query_codes, key_codes)
        ctx.num_buckets = num_buckets
        return _bucket_sums(query_codes, key_codes, value, num_buckets) / len(query_codes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, query_codes, key_codes = ctx.saved_tensors
        grad, size = grad / len(query_codes), ctx.num_buckets
        of_value = _bucket_sums(key_codes, query_codes, grad, size)
        of_query = _weighted_sums(query_codes, key_codes, grad, value, key, size)
        of_key = _weighted_sums(key_codes, query_codes, value, grad, query, size)
        return of_query, of_key, of_value, None, None, None


def _bucket_sums(read: Tensor, write: Tensor, x: Tensor, num_buckets: int) -> Tensor:
    """Return for each code of ``read`` [m, G, N] the sum of ``x`` [G, M, E] over the equal codes of ``write``."""
    groups, width = x.shape[0], x.shape[2]
    rows = groups * (num_buckets + 1)
    at_once = max(1, TABLE_ELEMENTS // max(rows * width, 1))
    output = x.new_zeros(groups * read.shape[2], width)
    group = torch.arange(groups, device=x.device).unsqueeze(1) * (num_buckets + 1)
    for begin in range(0, len(read), at_once):
        written, wanted = (codes[begin : begin + at_once] for codes in (write, read))
        first = torch.arange(len(written), device=x.device)[:, None, None] * rows + group
        table = x.new_zeros(len(written) * rows, width)
        index = (written + first).flatten().unsqueeze(1).expand(-1, width)
        table.scatter_add_(0, index, x.expand(len(written), -1, -1, -1).flatten(0, 2))
        table.view(-1, num_buckets + 1, width)[:, -1] = 0.0
        output += F.embedding_bag((wanted + first).flatten(1).T.contiguous(), table, mode="sum")
    return output.view(groups, -1, width)


def _weighted_sums(read: Tensor, write: Tensor, left: Tensor, right: Tensor, x: Tensor, num_buckets: int) -> Tensor:
    """Return sum_j count_ij (left_i right_j) x_j over the collisions of codes, [G, N, E]."""
    order = write.argsort(dim=-1)
    ordered = write.gather(-1, order)
    first = torch.searchsorted(ordered, read)
    number = (torch.searchsorted(ordered, read, right=True) - first).masked_fill_(read == num_buckets, 0)
    if int(number.sum()) * SPARSE > left.shape[0] * left.shape[1] * right.shape[1]:
        return _all_pairs(read, write, left, right, x, num_buckets)
    rows = torch.arange(write.shape[:2].numel(), device=x.device).view(*write.shape[:2], 1)
    active = number.flatten().nonzero()[:, 0]
    pairs = _Pairs(
        query=active % left.shape[:2].numel(),
        start=(first + rows * write.shape[2]).flatten()[active],
        number=number.flatten()[active],
        keys=(order + rows % len(x) * write.shape[2]).flatten(),
    )
    output = torch.zeros_like(left).flatten(0, 1)
    left, right, x = left.flatten(0, 1), right.flatten(0, 1), x.flatten(0, 1)
    for queries, keys, offsets in pairs.chunks():
        counts = offsets.diff(append=offsets.new_tensor([len(keys)]))
        weights = (left[queries.repeat_interleave(counts)] * right[keys]).sum(dim=-1)
        sums = F.embedding_bag(keys, x, offsets, mode="sum", per_sample_weights=weights)
        output.index_add_(0, queries, sums)
    return output.view(*read.shape[1:], -1)


class _Pairs(NamedTuple):
    """Colliding pairs by query: ``number`` keys of ``keys`` from ``start`` on, for each query of each hash."""

    query: Tensor
    start: Tensor
    number: Tensor
    keys: Tensor

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield queries, the keys of one after another, and the offset of each query's first key."""
        ends = self.number.cumsum(0)
        total = int(ends[-1]) if len(ends) else 0
        limits = torch.arange(PAIRS, total + PAIRS, PAIRS, device=ends.device)
        bounds = [0, *torch.searchsorted(ends, limits, right=True).tolist()]
        for begin, end in itertools.pairwise(bounds):
            if begin < end:
                number = self.number[begin:end]
                offsets = number.cumsum(0) - number
                place = torch.arange(int(number.sum()), device=ends.device)
                place += (self.start[begin:end] - offsets).repeat_interleave(number)
                yield self.query[begin:end], self.keys[place], offsets


def _all_pairs(read: Tensor, write: Tensor, left: Tensor, right: Tensor, x: Tensor, num_buckets: int) -> Tensor:
    """Return what :func:`_weighted_sums` returns, from the counts of all pairs."""
    size = max(1, PAIRS * SPARSE // max(right.shape[:2].numel(), 1))
    output = torch.empty_like(left)
    for begin in range(0, left.shape[1], size):
        some = slice(begin, begin + size)
        count = collision_counts(read[..., some], write, num_buckets)
        output[:, some] = (left[:, some] @ right.mT * count) @ x
    return output
