"""Softmax attention of blocks of queries to keys that several blocks share, recomputed in the backward pass.

The gradients of a block are added to those of the sequence in place, where autograd would allocate a tensor of the
whole sequence per block (results/efficiency/kernel_gains.csv lists what that gains).

Shapes: B batch, H heads, G batch times heads, N queries, M keys, S slots, E width of a head, n queries, m keys and s
slots of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from attentions.kernels.chunks import dropout_factor, dropout_seed
from attentions.kernels.numerics import accumulation_dtype, softmax_gradient, upcast

Tokens = slice | Tensor
"""A slice of the sequence, indices [n], or indices [H, n] where heads see different tokens."""


class Block(Protocol):
    """Queries that are in no other block, and the keys and the slots that they see."""

    @property
    def queries(self) -> Tokens: ...
    @property
    def keys(self) -> Tokens: ...
    @property
    def slots(self) -> slice: ...


class Biases(NamedTuple):
    """Differentiable terms of the logits of a block, in addition to the products of queries and keys."""

    keys: Tensor | None = None
    """Added to the logits of keys, [G or 1, n or 1, m]."""
    slots: Tensor | None = None
    """Added to the logits of slots, [G or 1, n or 1, s]."""
    slot_key: Tensor | None = None
    """Added to the keys of slots, [G, s, E]."""


class BlockLogits(NamedTuple):
    """The blocks, and the terms of their logits in addition to the products of queries and keys."""

    blocks: Callable[[], Iterable[Any]]
    """Yields the blocks, the same ones in both passes."""
    bias: Callable[..., Biases]
    """From a block, its queries [G, n, E] and the shared inputs to differentiable terms."""
    mask: Callable[[Any, Tensor], None]
    """Add very negative numbers to the logits [G, n, m + s] of hidden keys, in place."""
    dropout: float = 0.0


def over_blocks(
    of: BlockLogits,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slot_key: Tensor | None = None,
    slot_value: Tensor | None = None,
    content: Tensor | None = None,
    *shared: Tensor | None,
) -> Tensor:
    """Return softmax([(q + u) k^T; q s^T] / sqrt(E) + bias) [v; slot values], [B, H, N, E]; zero outside of the blocks.

    Args:
        of: blocks, biases and masks.
        query: q, [B, H, N, E].
        key, value: k and v, [B, H, M, E].
        slot_key, slot_value: s and its values, [B, H, S, E].
        content: u, [G, E].
        shared: inputs of the biases.
    """
    inputs = (query, key.to(query.dtype), value.to(query.dtype), slot_key, slot_value, content, *shared)
    if torch.compiler.is_compiling():  # the compiler decides what is recomputed
        return _outputs(of, None, *inputs)  # type: ignore[arg-type]
    return _OverBlocks.apply(of, dropout_seed(of.dropout), *inputs)


def _weights(
    of: BlockLogits, block: Block, q: Tensor, k: Tensor, s: Tensor | None, u: Tensor | None, bias: Biases
) -> Tensor:
    """Return the softmax over keys and slots, [G, n, m + s], in float32 or wider."""
    scale, q, k = q.shape[-1] ** -0.5, upcast(q), upcast(k)
    qu = q if u is None else q + upcast(u).unsqueeze(1)
    logits = torch.bmm(qu * scale, k.mT) if bias.keys is None else torch.baddbmm(bias.keys, qu, k.mT, alpha=scale)
    if s is not None:
        s = upcast(s) if bias.slot_key is None else upcast(s) + bias.slot_key
        of_slots = torch.bmm(q, s.mT) * scale
        logits = torch.cat([logits, of_slots if bias.slots is None else of_slots + bias.slots], dim=-1)
    of.mask(block, logits)
    return logits.softmax(dim=-1)


def _outputs(
    of: BlockLogits,
    seed: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slot_key: Tensor | None,
    slot_value: Tensor | None,
    content: Tensor | None,
    *shared: Tensor | None,
) -> Tensor:
    output = torch.zeros_like(query)
    with torch.autocast(query.device.type, enabled=False):
        for number, block in enumerate(of.blocks()):
            q, k, v = take(query, block.queries), take(key, block.keys), take(value, block.keys)
            s = None if slot_key is None else take(slot_key, block.slots)
            weights = _weights(of, block, q, k, s, content, of.bias(block, upcast(q), *shared))
            if torch.compiler.is_compiling():
                weights = F.dropout(weights, of.dropout)
            elif (factor := dropout_factor(weights, of.dropout, seed, number)) is not None:
                weights = weights * factor
            weights = weights.to(v.dtype)
            mean = torch.bmm(weights[..., : k.shape[1]], v)
            if slot_value is not None:
                mean = torch.baddbmm(mean, weights[..., k.shape[1] :], take(slot_value, block.slots))
            output[:, :, block.queries] = mean.unflatten(0, query.shape[:2])
    return output


class _OverBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, of: BlockLogits, seed: Tensor | None, *inputs: Tensor | None) -> Tensor:
        ctx.of, ctx.seed = of, seed
        ctx.save_for_backward(*inputs)
        return _outputs(of, seed, *inputs)  # type: ignore[arg-type]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of, inputs = ctx.of, ctx.saved_tensors
        query, key, value, slot_key, slot_value, content, *shared = inputs
        totals: list[Any] = [
            None if x is None else torch.zeros_like(x, dtype=accumulation_dtype(x.dtype)) for x in inputs
        ]
        d_query, d_key, d_value, d_slot_key, d_slot_value, d_content, *d_shared = totals
        shared = [None if x is None else x.detach().requires_grad_() for x in shared]
        with torch.autocast(grad.device.type, enabled=False):
            for number, block in enumerate(of.blocks()):
                q, k, v = take(query, block.queries), take(key, block.keys), take(value, block.keys)
                g, num_keys = take(grad, block.queries), k.shape[1]
                s = None if slot_key is None else take(slot_key, block.slots)
                leaf = upcast(q).detach().requires_grad_()
                with torch.enable_grad():
                    bias = of.bias(block, leaf, *shared)
                constant = Biases(*(None if x is None else x.detach() for x in bias))
                weights = _weights(of, block, q, k, s, content, constant)
                # output = dropout(weights) [v; slot values]
                factor = dropout_factor(weights, of.dropout, ctx.seed, number)
                used = (weights if factor is None else weights * factor).to(g.dtype)
                _add(d_value, block.keys, torch.bmm(used[..., :num_keys].mT, g))
                d_weights = torch.bmm(g, v.mT)
                if s is not None:
                    _add(d_slot_value, block.slots, torch.bmm(used[..., num_keys:].mT, g))
                    d_weights = torch.cat([d_weights, torch.bmm(g, take(slot_value, block.slots).mT)], dim=-1)
                d_weights = d_weights.to(weights.dtype)
                # weights = softmax(scale [(q + u) k^T; q (s + slot_key)^T] + [keys; slots])
                d_bias = softmax_gradient(weights, d_weights if factor is None else d_weights * factor)
                d_logits = (d_bias * q.shape[-1] ** -0.5).to(g.dtype)
                d_q = torch.bmm(d_logits[..., :num_keys], k)
                if d_content is not None:
                    d_content += d_q.sum(dim=1)
                qu, d_s = q if content is None else q + content.unsqueeze(1), None
                _add(d_key, block.keys, torch.bmm(d_logits[..., :num_keys].mT, qu))
                if s is not None:
                    s = s if constant.slot_key is None else s + constant.slot_key.to(s.dtype)
                    d_q += torch.bmm(d_logits[..., num_keys:], s)
                    d_s = torch.bmm(d_logits[..., num_keys:].mT, q)
                    _add(d_slot_key, block.slots, d_s)
                d_biases = d_bias[..., :num_keys], d_bias[..., num_keys:], d_s
                parts = _bias_gradients(bias, d_biases, [leaf, *shared])
                for total, part in zip((d_q, *d_shared), parts, strict=True):
                    if part is not None:
                        total += part
                d_query[:, :, block.queries] = d_q.unflatten(0, query.shape[:2]).to(d_query.dtype)
        return None, None, *(None if d is None else d.to(x.dtype) for d, x in zip(totals, inputs, strict=True))


def _bias_gradients(
    bias: Biases, d_biases: tuple[Tensor | None, ...], inputs: list[Tensor | None]
) -> list[Tensor | None]:
    """Return the gradients of ``inputs`` through the differentiable terms, by autograd; None for those without one."""
    terms = [(x, d) for x, d in zip(bias, d_biases, strict=True) if x is not None and d is not None and x.requires_grad]
    if not terms:
        return [None] * len(inputs)
    outputs, gradients = [x for x, _ in terms], [d.sum_to_size(x.shape) for x, d in terms]
    parts = iter(torch.autograd.grad(outputs, [x for x in inputs if x is not None], gradients, allow_unused=True))
    return [None if x is None else next(parts) for x in inputs]


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
