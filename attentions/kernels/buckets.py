"""Softmax attention inside buckets: tokens are sorted by bucket, then position, and see a window of the sorted row.

A window never leaves its bucket and counts its tokens alone, so in a causal form what a token sees depends on nothing
after it. (The published forms cut the sorted row into chunks, whose borders move with later tokens.) Several rounds of
buckets share one softmax, in which a pair counts once however many rounds it meets in.

Weights are formed block by block and recomputed in the backward pass; no tensor is larger than the inputs.

Shapes: B rows, H heads, G rows times heads, R rounds, N tokens, E width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentions.kernels.chunks import dropout_seed
from attentions.kernels.numerics import accumulation_dtype, mask_value, once_differentiable, upcast

CPU_BLOCK, DEVICE_BLOCK = 64, 512
"""Queries of one block on a CPU; elsewhere a launch costs more than keys that are computed in vain."""

BUCKET_ROUNDING = "which tokens share a block of the sorted row depends on all tokens"
"""Why an output rounds differently if later tokens change."""


class BucketWindow(NamedTuple):
    """Which tokens of its bucket a token sees: as many before it, itself or not, as many after it."""

    left: int
    right: int
    itself: bool = True

    def is_visible(self, distance: Tensor) -> Tensor:
        """Return whether a key is visible, given its position in the bucket relative to the query."""
        seen = (distance <= self.left) & (distance >= -self.right)
        return seen if self.itself else seen & (distance != 0)


def bucket_attention(
    query: Tensor, key: Tensor, value: Tensor, buckets: Tensor, window: BucketWindow, *, dropout: float = 0.0
) -> Tensor:
    """Compute softmax(q_i k_j / sqrt(E)) v_j over keys in the window in some round, [B, H, N, E]; zero without a key.

    Args:
        query, key, value: [B, H, N, E].
        buckets: numbers from 0 on, [R, B, H, N].
        window: what a token sees of its bucket.
        dropout: probability of dropping a weight.
    """
    dtype = query.dtype
    order = buckets.argsort(dim=-1, stable=True)
    return _Bucketed.apply(
        query, key.to(dtype), value.to(dtype), buckets, order, window, dropout, dropout_seed(dropout)
    )


def positions_in_buckets(buckets: Tensor) -> Tensor:
    """Return the number of preceding tokens of the same bucket, [..., N]."""
    order = buckets.argsort(dim=-1, stable=True)
    slot = torch.arange(buckets.shape[-1], device=buckets.device).expand_as(order)
    position = slot - _starts(buckets.gather(-1, order))
    return torch.empty_like(order).scatter_(-1, order, position)


def shared_rounds(buckets: Tensor, positions: Tensor, keys: tuple[Tensor, Tensor], window: BucketWindow) -> Tensor:
    """Return the number of rounds in which queries see keys, [..., T, S].

    Args:
        buckets, positions: of the queries, [R, ..., T].
        keys: the same of the keys, [R, ..., S].
        window: what a token sees of its bucket.
    """
    same = buckets.unsqueeze(-1) == keys[0].unsqueeze(-2)
    return (same & window.is_visible(positions.unsqueeze(-1) - keys[1].unsqueeze(-2))).sum(dim=0)


def _starts(ordered: Tensor) -> Tensor:
    """Return the first slot of the bucket of each slot, for sorted buckets [..., N]."""
    slot = torch.arange(ordered.shape[-1], device=ordered.device)
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    return torch.where(begins, slot, 0).cummax(dim=-1).values


class _Round:
    """One round: its tokens in the order of their buckets."""

    def __init__(self, number: int, buckets: Tensor, order: Tensor, window: BucketWindow) -> None:
        self.order, self.window = order[number].flatten(0, 1), window
        slots = torch.arange(order.shape[-1], device=order.device)
        self.slot = torch.empty_like(self.order).scatter_(1, self.order, slots.expand_as(self.order))
        # Twice the position in each round's sorted row, buckets set apart: keys in the window are so by number alone.
        gap = max(window.left, window.right) + 1
        positions = []
        for bucket, taken in zip(buckets.flatten(1, 2), order.flatten(1, 2), strict=True):
            position = torch.empty_like(taken).scatter_(1, taken, slots.expand_as(taken)) + bucket * gap
            positions.append((2 * position).to(torch.int32).gather(1, self.order))
        self.positions, self.other_rounds = positions[number], positions[:number] + positions[number + 1 :]
        self.starts = _starts(buckets[number].flatten(0, 1).gather(1, self.order))

    def sort(self, x: Tensor) -> Tensor:
        """Sort [B, H, N, ...] by buckets: [G, N, ...]."""
        return _at(x.flatten(0, 1), self.order)

    def unsort(self, x: Tensor, like: Tensor) -> Tensor:
        """Restore the original order."""
        return _at(x, self.slot).view_as(like)

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield queries and the keys that they may attend to."""
        length = self.order.shape[1]
        is_cpu = self.order.device.type == "cpu"
        reads = is_cpu and not torch.compiler.is_compiling()
        size = CPU_BLOCK if is_cpu else DEVICE_BLOCK
        begins = range(0, length, size)
        # A device computes up to ``left`` keys of other buckets in vain, where the host would wait for the starts.
        firsts = self.starts[:, ::size].amin(dim=0).tolist() if reads else [0] * len(begins)
        for begin, first in zip(begins, firsts, strict=True):
            end = min(begin + size, length)
            yield slice(begin, end), slice(max(first, begin - self.window.left), min(length, end + self.window.right))

    def logits(self, query: Tensor, key: Tensor, queries: slice, keys: slice) -> Tensor:
        """[G, queries, keys], less the logarithm of the rounds that a pair meets in; hidden where not in this one."""
        logits = torch.bmm(upcast(query), upcast(key).mT)
        seen = self._in_window(self.positions, queries, keys)
        if not self.window.itself:
            slots = torch.arange(self.order.shape[1], device=key.device)
            seen &= slots[queries, None] != slots[keys]
        if self.other_rounds:
            count = torch.ones_like(logits)
            for positions in self.other_rounds:
                count += self._in_window(positions, queries, keys)
            logits -= count.log_()
        return logits.masked_fill_(seen.logical_not_(), mask_value(logits.dtype))

    def _in_window(self, positions: Tensor, queries: slice, keys: slice) -> Tensor:
        left, right, _ = self.window
        distance = (positions[:, queries] - (left - right)).unsqueeze(2) - positions[:, keys].unsqueeze(1)
        return distance.abs_() <= left + right

    def dropout_factor(self, queries: slice, keys: slice, dropout: float, seed: Tensor | None) -> Tensor | None:
        """Return the dropout factors [G, queries, keys]; a pair of tokens has one factor, wherever both are sorted."""
        if seed is None:
            return None
        row = torch.arange(len(self.order), device=self.order.device).unsqueeze(1)
        number = (row * self.order.shape[1] + self.order[:, queries]) * self.order.shape[1]
        mixed = number.unsqueeze(2) + self.order[:, keys].unsqueeze(1) + int(seed)
        for factor in _MIX:
            mixed *= factor
            mixed ^= mixed >> 29
        kept = mixed & (2**24 - 1) >= dropout * 2**24
        return kept.to(torch.float32) / (1.0 - dropout)


_MIX = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
"""Odd numbers of splitmix64, whose rounds make any number one at random."""


def _at(x: Tensor, index: Tensor) -> Tensor:
    """Gather the tokens ``index`` [G, N] of [G, N] or [G, N, E]."""
    return x.gather(1, index if x.dim() == 2 else index.unsqueeze(2).expand(-1, -1, x.shape[2]))


class _Bucketed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        buckets: Tensor,
        order: Tensor,
        window: BucketWindow,
        dropout: float,
        seed: Tensor | None,
    ) -> Tensor:
        dtype, scale = accumulation_dtype(query.dtype), query.shape[-1] ** -0.5
        output = torch.zeros_like(query, dtype=dtype)
        total = torch.full(query.shape[:3], mask_value(dtype), dtype=dtype, device=query.device)
        with torch.autocast(query.device.type, enabled=False):
            for number in range(len(buckets)):
                rows = _Round(number, buckets, order, window)
                q, k, v = rows.sort(query).mul_(scale), rows.sort(key), rows.sort(value)
                means, sums = torch.empty_like(q, dtype=dtype), torch.empty_like(q[..., 0], dtype=dtype)
                for queries, keys in rows.blocks():
                    logits = rows.logits(q[:, queries], k[:, keys], queries, keys)
                    sums[:, queries] = logits.logsumexp(dim=2)
                    weights = logits.softmax(dim=2)
                    factor = rows.dropout_factor(queries, keys, dropout, seed)
                    weights = weights if factor is None else weights * factor
                    means[:, queries] = torch.bmm(weights, upcast(v[:, keys]))
                del q, k, v
                of_round = rows.unsort(sums, total)
                joined = torch.logaddexp(total, of_round)
                output *= (total - joined).exp_().unsqueeze(-1)
                output += rows.unsort(means, output).mul_((of_round - joined).exp_().unsqueeze(-1))
                total = joined
        none = total < 0.5 * mask_value(dtype)
        output = output.masked_fill_(none.unsqueeze(-1), 0.0).to(query.dtype)
        ctx.save_for_backward(query, key, value, output, total.masked_fill_(none, 0.0), buckets, order, seed)
        ctx.window, ctx.dropout = window, dropout
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, total, buckets, order, seed = ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        gradients = [torch.zeros_like(x, dtype=accumulation_dtype(x.dtype)) for x in (query, key, value)]
        with torch.autocast(query.device.type, enabled=False):
            mean = (upcast(grad) * output).sum(dim=-1)
            for number in range(len(buckets)):
                rows = _Round(number, buckets, order, ctx.window)
                q, k, v, g = (rows.sort(x) for x in (query, key, value, grad))
                q, sums, means = q.mul_(scale), rows.sort(total).unsqueeze(2), rows.sort(mean).unsqueeze(2)
                d_query, d_key, d_value = (torch.zeros_like(x, dtype=total.dtype) for x in (q, k, v))
                for queries, keys in rows.blocks():
                    some_q, some_g = upcast(q[:, queries]), upcast(g[:, queries])
                    weights = rows.logits(some_q, k[:, keys], queries, keys).sub_(sums[:, queries]).exp_()
                    d_weights = torch.bmm(some_g, upcast(v[:, keys]).mT)
                    factor = rows.dropout_factor(queries, keys, ctx.dropout, seed)
                    used = weights if factor is None else weights * factor
                    d_weights = d_weights if factor is None else d_weights * factor
                    d_value[:, keys] += torch.bmm(used.mT, some_g)
                    d_logits = d_weights.sub_(means[:, queries]).mul_(weights)
                    d_query[:, queries] = torch.bmm(d_logits, upcast(k[:, keys]))
                    d_key[:, keys] += torch.bmm(d_logits.mT, some_q)
                del q, k, v, g
                for gradient, part in zip(gradients, (d_query.mul_(scale), d_key, d_value), strict=True):
                    gradient += rows.unsort(part, gradient)
        return *(x.to(query.dtype) for x in gradients), None, None, None, None, None
