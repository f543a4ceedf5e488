"""Softmax attention of blocks of queries to keys that several blocks share, recomputed in the backward pass.

The gradients of a block are added to those of the sequence in place, where autograd would allocate a tensor of the
whole sequence per block (results/efficiency/kernel_gains.csv lists what that gains).

Shapes: B batch, H heads, G batch times heads, N queries, M keys, S slots, W distances, E width of a head, n queries,
m keys and s slots of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.kernels.chunks import dropout_factor, dropout_seed
from attentions.kernels.numerics import accumulation_dtype, mask_value, once_differentiable, softmax_gradient, upcast

Tokens = slice | Tensor
"""A slice of the sequence, indices [n], or indices [H, n] where heads see different tokens."""


class Block(NamedTuple):
    """Queries that are in no other block, and the keys and slots that they see."""

    queries: Tokens
    keys: Tokens
    hidden: Tensor | None = None
    """True = hidden key, [n or 1, m] or [H, n or 1, m]."""
    mask: Tensor | None = None
    """Zero or minus infinity for each key, [n, m]."""
    columns: slice = slice(None)
    """The columns of ``keys`` among the n + W - 1 keys at any distance from the queries."""
    slots: slice = slice(0)
    slot_mask: Tensor | None = None
    """Zero or minus infinity for each slot, [n, s]; None if all queries of the block see the same slots."""
    slot_columns: Tensor | None = None
    """The distance of each slot as an index of the slot embeddings, [n, s]; None with ``slot_mask``."""


class Inputs(NamedTuple):
    """The differentiable inputs."""

    query: Tensor
    """q, [B, H, N, E]."""
    key: Tensor
    """k, [B, H, M, E]."""
    value: Tensor
    """v, [B, H, M, E]."""
    slot_key: Tensor | None = None
    """k', [B, H, S, E]."""
    slot_value: Tensor | None = None
    """v', [B, H, S, E]."""
    slot_biases: Tensor | None = None
    """s', [G, S]."""
    slot_embeddings: Tensor | None = None
    """p', [G, S, E], from the furthest slot to the last visible one."""
    embeddings: Tensor | None = None
    """p, [G, W, E]."""
    biases: Tensor | None = None
    """s, [G, W]."""
    content: Tensor | None = None
    """u, [G, E]."""


class Plan(NamedTuple):
    """The blocks, the masks of keys [B, M] and slots [B, S] (zero or minus infinity), and the dropout of weights."""

    blocks: Callable[[], Iterable[Block]]
    key_mask: Tensor | None = None
    slot_mask: Tensor | None = None
    dropout: float = 0.0


def over_blocks(plan: Plan, x: Inputs) -> Tensor:
    """Return softmax([(q + u) (k + p)^T / sqrt(E) + s; q (k' + p')^T / sqrt(E) + s']) [v; v'], [B, H, N, E].

    Queries in no block get zero.
    """
    dtype = x.query.dtype
    x = Inputs(*(None if y is None else y.to(dtype) for y in x))  # type: ignore[arg-type]
    if torch.compiler.is_compiling():  # the compiler decides what is recomputed
        return _outputs(plan, None, x)
    return _OverBlocks.apply(plan, dropout_seed(plan.dropout), *x)


def tiled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tiles: Sequence[Block],
    *,
    key_padding_mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax(q K^T / sqrt(E)) V of each tile, [B, H, N, E]; zero for queries without a key or a tile.

    With ``key_padding_mask`` [B, M], True = hidden, all heads see the same tokens.
    """
    mask = key_padding_mask
    key_mask = None if mask is None else _bias(mask, accumulation_dtype(query.dtype))
    output = over_blocks(Plan(lambda: tiles, key_mask, dropout=dropout), Inputs(query, key, value))
    rows = 1 if mask is None else len(mask)
    empty = torch.zeros(rows, query.shape[1], query.shape[2], 1, dtype=torch.bool, device=query.device)
    for tile in tiles:
        hidden = None if mask is None else mask[:, None, None, tile.keys]
        if tile.hidden is not None:
            hidden = tile.hidden if hidden is None else tile.hidden | hidden
        if hidden is not None:
            empty[:, :, tile.queries] = hidden.all(dim=-1, keepdim=True)
    return output.masked_fill(empty, 0.0)


def _bias(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Return zero, or minus infinity where ``hidden``."""
    return torch.zeros_like(hidden, dtype=dtype).masked_fill_(hidden, mask_value(dtype))


def by_key(logits: Tensor) -> Tensor:
    """Skew logits by distance [..., n, W] to logits by key [..., n, n + W - 1], hidden where no distance applies."""
    n, num_distances = logits.shape[-2:]
    padded = F.pad(logits, (0, n), value=mask_value(logits.dtype)).flatten(-2)
    return padded[..., : n * (n + num_distances - 1)].unflatten(-1, (n, -1))


def by_distance(logits: Tensor, columns: slice, num_distances: int) -> Tensor:
    """Invert :func:`by_key`: from the ``columns`` of a block's keys [G, n, m] to [G, n, W]."""
    num_groups, n, _ = logits.shape
    padded = logits.new_zeros(num_groups, n * (n + num_distances))
    padded[:, : n * (n + num_distances - 1)].unflatten(1, (n, -1))[..., columns] = logits
    return padded.unflatten(1, (n, -1))[..., :num_distances]


class _Operands(NamedTuple):
    """Inputs of a block: q, q + u, k and v, and k' + p' and v' of its slots; all [G, n or m or s, E]."""

    q: Tensor
    qu: Tensor
    k: Tensor
    v: Tensor
    slot_k: Tensor | None
    slot_v: Tensor | None


def _operands(x: Inputs, block: Block) -> _Operands:
    q, slot_k = take(x.query, block.queries), None
    if x.slot_key is not None:
        slot_k = take(x.slot_key, block.slots)
        if x.slot_embeddings is not None and block.slot_columns is None:  # the queries are at one distance from a slot
            slot_k = slot_k + x.slot_embeddings[:, x.slot_embeddings.shape[1] - block.slots.stop :]
    return _Operands(
        q,
        q if x.content is None else q + x.content.unsqueeze(1),
        take(x.key, block.keys),
        take(x.value, block.keys),
        slot_k,
        None if x.slot_value is None else take(x.slot_value, block.slots),
    )


def _weights(plan: Plan, x: Inputs, block: Block, of: _Operands) -> Tensor:
    """Return the softmax over keys and slots, [G, n, m + s], in float32 or wider."""
    scale, qu, k, batch = x.query.shape[-1] ** -0.5, upcast(of.qu), upcast(of.k), len(x.query)
    bias = block.mask
    if x.embeddings is not None:
        assert x.biases is not None
        # (q + u) p / sqrt(E) + s
        of_distance = torch.baddbmm(upcast(x.biases).unsqueeze(1), qu, upcast(x.embeddings).mT, alpha=scale)
        bias = by_key(of_distance)[..., block.columns]
        bias = bias if block.mask is None else bias + block.mask
    # Out of place and joined afterwards: products into a slice of a tensor run once per head.
    logits = torch.bmm(qu * scale, k.mT) if bias is None else torch.baddbmm(bias, qu, k.mT, alpha=scale)
    if block.hidden is not None:
        logits.unflatten(0, (batch, -1)).add_(_bias(block.hidden, logits.dtype))
    if plan.key_mask is not None:
        logits.unflatten(0, (batch, -1)).add_(plan.key_mask[:, None, None, block.keys])
    if of.slot_k is not None and block.slots.stop:
        logits = torch.cat([logits, _slot_logits(plan, x, block, upcast(of.q), upcast(of.slot_k))], dim=-1)
    return logits.softmax(dim=-1)


def _slot_logits(plan: Plan, x: Inputs, block: Block, q: Tensor, slot_k: Tensor) -> Tensor:
    scale = q.shape[-1] ** -0.5
    logits = q @ slot_k.mT * scale
    if block.slot_mask is not None:
        logits += block.slot_mask
    if x.slot_embeddings is not None and block.slot_columns is not None:
        of_distance = q @ upcast(x.slot_embeddings).mT * scale
        logits += of_distance.gather(2, block.slot_columns.expand(len(q), -1, -1))
    if x.slot_biases is not None:
        logits += x.slot_biases[:, None, block.slots]
    if plan.slot_mask is not None:
        logits.unflatten(0, (len(plan.slot_mask), -1)).add_(plan.slot_mask[:, None, None, block.slots])
    return logits


def _outputs(plan: Plan, seed: Tensor | None, x: Inputs) -> Tensor:
    output = torch.zeros_like(x.query)
    with torch.autocast(x.query.device.type, enabled=False):
        for number, block in enumerate(plan.blocks()):
            of = _operands(x, block)
            weights = _weights(plan, x, block, of)
            if torch.compiler.is_compiling():
                weights = F.dropout(weights, plan.dropout)
            elif (factor := dropout_factor(weights, plan.dropout, seed, number)) is not None:
                weights = weights * factor
            weights, num_keys = weights.to(of.v.dtype), of.k.shape[1]
            mean = torch.bmm(weights[..., :num_keys], of.v)
            if of.slot_v is not None:
                mean = torch.baddbmm(mean, weights[..., num_keys:], of.slot_v)
            output[:, :, block.queries] = mean.unflatten(0, x.query.shape[:2])
    return output


class _OverBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, seed: Tensor | None, *inputs: Any) -> Tensor:
        ctx.plan, ctx.seed = plan, seed
        ctx.save_for_backward(*inputs)
        return _outputs(plan, seed, Inputs(*inputs))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        plan, x = ctx.plan, Inputs(*ctx.saved_tensors)
        # Summed in float32 or wider where blocks meet.
        sums = [None if y is None else torch.zeros_like(y, dtype=accumulation_dtype(y.dtype)) for y in x]
        d = Inputs(*sums)  # type: ignore[arg-type]
        with torch.autocast(grad.device.type, enabled=False):
            for number, block in enumerate(plan.blocks()):
                of, g = _operands(x, block), take(grad, block.queries)
                weights, num_keys = _weights(plan, x, block, of), of.k.shape[1]
                # output = dropout(weights) [v; v']
                d_weights = torch.bmm(g, of.v.mT)
                if of.slot_v is not None:
                    d_weights = torch.cat([d_weights, torch.bmm(g, of.slot_v.mT)], dim=-1)
                d_weights, used = d_weights.to(weights.dtype), weights
                factor = dropout_factor(weights, plan.dropout, ctx.seed, number)
                if factor is not None:
                    used, d_weights = weights * factor, d_weights * factor
                used = used.to(g.dtype)
                _add(d.value, block.keys, torch.bmm(used[..., :num_keys].mT, g))
                if d.slot_value is not None:
                    _add(d.slot_value, block.slots, torch.bmm(used[..., num_keys:].mT, g))
                d_logits = softmax_gradient(weights, d_weights).mul_(g.shape[-1] ** -0.5).to(g.dtype)
                d_q = _key_gradient(x, block, of, d_logits[..., :num_keys], d)
                if of.slot_k is not None:
                    d_q += _slot_gradient(x, block, of, d_logits[..., num_keys:], d)
                d.query[:, :, block.queries] = d_q.unflatten(0, grad.shape[:2]).to(d.query.dtype)
        return None, None, *(None if y is None else y.to(grad.dtype) for y in d)


def _key_gradient(x: Inputs, block: Block, of: _Operands, d_logits: Tensor, d: Inputs) -> Tensor:
    """Add to the gradients of k, p, s and u, and return that of q; ``d_logits`` is divided by sqrt(E)."""
    d_q = torch.bmm(d_logits, of.k)
    _add(d.key, block.keys, torch.bmm(d_logits.mT, of.qu))
    if x.embeddings is not None:
        assert d.embeddings is not None
        assert d.biases is not None
        of_distance = by_distance(d_logits, block.columns, x.embeddings.shape[1])
        d.biases.add_(of_distance.sum(dim=1), alpha=of.q.shape[-1] ** 0.5)
        d.embeddings.add_(torch.bmm(of_distance.mT, of.qu))
        d_q.baddbmm_(of_distance, x.embeddings)
    if d.content is not None:
        d.content.add_(d_q.sum(dim=1))
    return d_q


def _slot_gradient(x: Inputs, block: Block, of: _Operands, d_logits: Tensor, d: Inputs) -> Tensor:
    """Add to the gradients of k', p' and s', and return that of q; ``d_logits`` is divided by sqrt(E)."""
    assert of.slot_k is not None
    assert d.slot_key is not None
    d_q, d_slot = torch.bmm(d_logits, of.slot_k), torch.bmm(d_logits.mT, of.q)
    _add(d.slot_key, block.slots, d_slot)
    if d.slot_biases is not None:
        d.slot_biases[:, block.slots].add_(d_logits.sum(dim=1), alpha=of.q.shape[-1] ** 0.5)
    if d.slot_embeddings is not None and block.slot_columns is None:
        d.slot_embeddings[:, d.slot_embeddings.shape[1] - block.slots.stop :] += d_slot
    elif d.slot_embeddings is not None:
        assert x.slot_embeddings is not None
        assert block.slot_columns is not None
        of_distance = d_logits.new_zeros(*d_logits.shape[:2], d.slot_embeddings.shape[1])
        of_distance.scatter_(2, block.slot_columns.expand_as(d_logits), d_logits)
        d_q.baddbmm_(of_distance, x.slot_embeddings)
        d.slot_embeddings.add_(torch.bmm(of_distance.mT, of.q))
    return d_q


def take(x: Tensor, tokens: Tokens) -> Tensor:
    """Return ``tokens`` of ``x`` [B, H, N, E] as [G, n, E]."""
    if isinstance(tokens, slice):
        return x[:, :, tokens].flatten(0, 1)
    if tokens.dim() == 1:
        return x.index_select(2, tokens).flatten(0, 1)
    return x.gather(2, tokens[:, :, None].expand(len(x), -1, -1, x.shape[3])).flatten(0, 1)


def _add(total: Tensor, tokens: Tokens, part: Tensor) -> None:
    """Add ``part`` [G, n, E] to ``tokens`` of ``total``."""
    part = part.unflatten(0, total.shape[:2])
    if isinstance(tokens, slice):
        total[:, :, tokens] += part
    elif tokens.dim() == 1:
        total.index_add_(2, tokens, part.to(total.dtype))
    else:
        total.scatter_add_(2, tokens[:, :, None].expand_as(part), part.to(total.dtype))
