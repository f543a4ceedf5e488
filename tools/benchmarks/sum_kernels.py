"""Implementations of kernels that are compared: sums over keys and recurrences, and what every comparison needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions.abc import WeightedMeans
from attentions.kernels import causal_abc as abc_kernel, chunks, exponential_features
from attentions.kernels.linear_attention import KERNELS as KERNELS_OF_FEATURES, MeanOfQueries, SumOfKeys
from attentions.kernels.numerics import mask_value, recompute
from attentions.kernels.recurrence import block_states

HEADS, WIDTH, SLOTS = 8, 64, 16

Call = Callable[[], tuple[Tensor, ...]]
Forms = tuple[Call, Call, Call]
"""Hand-written gradient, plain autograd, and autograd with checkpointed blocks."""
ELU = KERNELS_OF_FEATURES["elu1"]


def uniform(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.rand(shape).add(0.1).requires_grad_() for shape in shapes]


def normal(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def compared(inputs: list[Tensor], *forms: Callable[..., Any]) -> Forms:
    """Compute gradients with each implementation; inputs are freed as soon as it no longer uses them."""

    def gradients(form: Callable[..., Any]) -> tuple[Tensor, ...]:
        outputs = form(*(x * 1.0 for x in inputs))
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        total = sum((x.sin().sum() for x in outputs), torch.zeros(()))
        return torch.autograd.grad(total, inputs, materialize_grads=True)

    by_hand, plain, checkpointed = forms
    return lambda: gradients(by_hand), lambda: gradients(plain), lambda: gradients(checkpointed)


def by_pieces(function: Callable[..., Tensor], x: Tensor) -> Tensor:
    """Apply ``function`` to chunks of tokens [..., N, E], checkpointed."""
    size = chunks.tokens_at_once(x.shape[:-2].numel(), x.device)
    return torch.cat([recompute(function, piece) for piece in x.split(size, dim=-2)], dim=-2)


# --- sums over keys --------------------------------------------------------------------------------------------------


def sum_of_keys(length: int) -> Forms:
    def plain(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        features = F.elu(key) + 1.0
        return features.mT @ value, features.sum(dim=-2)

    def checkpointed(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        size = chunks.tokens_at_once(HEADS, key.device)
        parts = [recompute(plain, k, v) for k, v in zip(key.split(size, 2), value.split(size, 2), strict=True)]
        sums, mass = zip(*parts, strict=True)
        return torch.stack(sums).sum(dim=0), torch.stack(mass).sum(dim=0)

    inputs = uniform(*[(1, HEADS, length, WIDTH)] * 2)
    return compared(inputs, lambda k, v: SumOfKeys.apply(ELU, k, v, None, None), plain, checkpointed)


def mean_of_queries(length: int) -> Forms:
    def plain(query: Tensor, sums: Tensor, mass: Tensor) -> Tensor:
        features = F.elu(query) + 1.0
        return features @ sums / (features * mass.unsqueeze(-2)).sum(dim=-1, keepdim=True).clamp(min=1e-30)

    def checkpointed(query: Tensor, sums: Tensor, mass: Tensor) -> Tensor:
        return by_pieces(lambda q: plain(q, sums, mass), query)

    inputs = uniform((1, HEADS, length, WIDTH), (1, HEADS, WIDTH, WIDTH), (1, HEADS, WIDTH))
    return compared(inputs, lambda q, s, m: MeanOfQueries.apply(ELU, q, None, s, m, 1e-30), plain, checkpointed)


def key_means(length: int) -> Forms:
    weights = torch.randn(HEADS, SLOTS, WIDTH)

    def plain(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        logs = exponential_features._key_logarithms(key, weights, None)
        return logs.softmax(dim=-1) @ value, logs.logsumexp(dim=-1)

    def checkpointed(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        size = chunks.tokens_at_once(HEADS, key.device)
        parts = [recompute(plain, k, v) for k, v in zip(key.split(size, 1), value.split(size, 1), strict=True)]
        means, masses = (torch.stack(x) for x in zip(*parts, strict=True))
        return (masses.softmax(dim=0).unsqueeze(-1) * means).sum(dim=0), masses.logsumexp(dim=0)

    inputs = uniform(*[(HEADS, length, WIDTH)] * 2)
    return compared(inputs, lambda k, v: exponential_features.KeyMeans.apply(k, v, weights, None), plain, checkpointed)


def weighted_means(length: int) -> Forms:
    inputs = uniform((1, HEADS, length, WIDTH), (WIDTH, SLOTS))

    def plain(x: Tensor, w: Tensor) -> Tensor:
        return (w.T @ x.mT).softmax(dim=-1) @ x

    return compared(inputs, lambda x, w: WeightedMeans.apply(x, w, None), plain, lambda *x: recompute(plain, *x))


# --- recurrences -----------------------------------------------------------------------------------------------------


def causal_abc(length: int) -> Forms:
    mass = torch.full((2, 1, HEADS, SLOTS), mask_value(), dtype=torch.float64)
    mean = torch.zeros(2, 1, HEADS, SLOTS, WIDTH)

    def span(q: Tensor, k: Tensor, v: Tensor, compress: Tensor, mass: Tensor, mean: Tensor) -> tuple[Tensor, ...]:
        """Compute one chunk [G, N, E] after mass [2, G, r] and mean [2, G, r, E]."""
        q, *tokens = (x.unflatten(1, (-1, abc_kernel.BLOCK)) for x in (q, k, v))
        x = torch.stack(tokens)
        logits = (x.flatten(1, 3) @ compress).view(*x.shape[:-1], -1)
        block_mean, logits = logits.softmax(dim=-2).mT @ x, logits.double()
        block_mass = logits.logsumexp(dim=-2)
        masses = torch.cat([mass.unsqueeze(2), block_mass], dim=2).logcumsumexp(dim=2)
        old, new = (masses[:, :, :-1] - masses[:, :, 1:]).exp(), (block_mass - masses[:, :, 1:]).exp()
        means = block_states(mean, new.float().unsqueeze(-1) * block_mean, old.float().unsqueeze(-1))
        before = masses[:, :, :-1].unsqueeze(-2)
        unit = torch.maximum(before, logits[..., :1, :]).detach()
        before, weight = (before - unit).exp(), (logits - unit).clamp(max=abc_kernel.LARGEST).exp()
        total = weight.cumsum(dim=-2) + before
        products, past = (q @ x[0].mT).tril(), q @ means[0, :, :-1].mT
        read = (products.double() @ weight[0] + before[0] * past.double()) / total[0]
        weights = (read * WIDTH**-0.5).softmax(dim=-1) / total[1]
        mixed = (weights @ weight[1].mT).tril().float()
        output = (weights * before[1]).float() @ means[1, :, :-1] + mixed @ x[1]
        return output.flatten(1, 2), masses[:, :, -1], means[:, :, -1]

    def plain(q: Tensor, k: Tensor, v: Tensor, compress: Tensor) -> Tensor:
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        return span(q, k, v, compress, mass.flatten(1, 2), mean.flatten(1, 2))[0].unflatten(0, (1, HEADS))

    def checkpointed(q: Tensor, k: Tensor, v: Tensor, compress: Tensor) -> Tensor:
        state, outputs = [mass.flatten(1, 2), mean.flatten(1, 2)], []
        for parts in zip(*(x.flatten(0, 1).split(abc_kernel.SPAN, dim=1) for x in (q, k, v)), strict=True):
            output, *state = recompute(span, *parts, compress, *state)
            outputs.append(output)
        return torch.cat(outputs, dim=1).unflatten(0, (1, HEADS))

    inputs = uniform(*[(1, HEADS, length, WIDTH)] * 3, (2, WIDTH, SLOTS))
    return compared(
        inputs, lambda q, k, v, c: abc_kernel.causal_abc(q, k, v, c, None, mass, mean)[0], plain, checkpointed
    )


KERNELS: dict[str, Callable[[int], Forms]] = {
    "SumOfKeys": sum_of_keys,
    "MeanOfQueries": mean_of_queries,
    "KeyMeans": key_means,
    "WeightedMeans": weighted_means,
    "causal_abc": causal_abc,
}
