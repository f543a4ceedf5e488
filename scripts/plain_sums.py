"""Sums over keys by plain autograd, beside the kernels that have their gradient by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from attentions import linear, linearized, performer, s4d
from attentions.kernels import block_readout, exponential_features, running_memory
from attentions.kernels.linear_sums import MeanOfQueries, SumOfKeys
from attentions.kernels.precision import no_weight
from attentions.kernels.weighted_means import WeightedMeans
from cab import build_attention

HEADS, WIDTH, SLOTS = 8, 64, 16

Call = Callable[[], tuple[Tensor, ...]]
Forms = tuple[Call, Call]
"""The kernel and plain autograd, each with its backward pass."""


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.rand(shape).add(0.1).requires_grad_() for shape in shapes]


def compared(by_hand: Callable[..., Any], plain: Callable[..., Any], inputs: list[Tensor]) -> Forms:
    """Gradients of both; inputs are new tensors, as projections give them: they stay only where a form keeps them."""

    def gradients(form: Callable[..., Any]) -> tuple[Tensor, ...]:
        outputs = form(*(x * 1.0 for x in inputs))
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        total = sum((x.sin().sum() for x in outputs), torch.zeros(()))
        return torch.autograd.grad(total, inputs, materialize_grads=True)

    return lambda: gradients(by_hand), lambda: gradients(plain)


def in_attention(
    name: str, pattern: str, module: Any, kernel: str, plain: Callable[..., Any], **options: Any
) -> Callable[[int], Forms]:
    """A whole attention; and the same with ``plain`` in the place of a kernel."""

    def forms(length: int) -> Forms:
        attention = build_attention(name, pattern=pattern, embed_dim=HEADS * WIDTH, num_heads=HEADS, **options)
        (x,) = leaves((1, length, HEADS * WIDTH))

        def call() -> tuple[Tensor, ...]:
            return torch.autograd.grad(attention(x).sin().sum(), [x, *attention.parameters()])

        def plainly() -> tuple[Tensor, ...]:
            with mock.patch.object(module, kernel, SimpleNamespace(apply=plain)):
                return call()

        return call, plainly

    return forms


# --- plain forms -----------------------------------------------------------------------------------------------------


def feature_mean(query: Tensor, weights: Tensor, means: Tensor, log_mass: Tensor) -> Tensor:
    return exponential_features._feature_shares(query, weights, log_mass) @ means


def scan(inputs: Tensor, factor: Tensor, first: Tensor, backwards: bool) -> Tensor:
    if backwards:
        return scan(inputs.flip(2), factor, first, False).flip(2)
    states = [first]
    for one in inputs.unbind(dim=2)[:-1]:
        states.append(torch.addcmul(one, factor[:, None], states[-1]))
    return torch.stack(states, dim=2)


def sum_of_keys(length: int) -> Forms:
    def plain(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        features = F.elu(key) + 1.0
        return features.mT @ value, features.sum(dim=-2)

    inputs = leaves(*[(1, HEADS, length, WIDTH)] * 2)
    return compared(lambda k, v: SumOfKeys.apply(linear.EluPlusOne, k, v, None, None), plain, inputs)


def mean_of_queries(length: int) -> Forms:
    def plain(query: Tensor, sums: Tensor, mass: Tensor) -> Tensor:
        features = F.elu(query) + 1.0
        return features @ sums / (features * mass.unsqueeze(-2)).sum(dim=-1, keepdim=True).clamp(min=1e-30)

    inputs = leaves((1, HEADS, length, WIDTH), (1, HEADS, WIDTH, WIDTH), (1, HEADS, WIDTH))
    return compared(lambda q, s, m: MeanOfQueries.apply(linear.EluPlusOne, q, None, s, m, 1e-30), plain, inputs)


def key_means(length: int) -> Forms:
    weights = torch.randn(HEADS, SLOTS, WIDTH)

    def plain(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        logs = exponential_features._key_logarithms(key, weights, None)
        return logs.softmax(dim=-1) @ value, logs.logsumexp(dim=-1)

    inputs = leaves(*[(HEADS, length, WIDTH)] * 2)
    return compared(lambda k, v: exponential_features.KeyMeans.apply(k, v, weights, None), plain, inputs)


def weighted_means(length: int) -> Forms:
    inputs = leaves((1, HEADS, length, WIDTH), (WIDTH, SLOTS))
    return compared(lambda x, w: WeightedMeans.apply(x, w, None), lambda x, w: (w.T @ x.mT).softmax(dim=-1) @ x, inputs)


def readout(length: int) -> Forms:
    features, block, state = HEADS * WIDTH, 16, 16
    blocks, outputs = length // block, HEADS * block

    def plain(tokens: Tensor, before: Tensor, matrix: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        active = F.gelu(matrix @ torch.cat([tokens, before], dim=-1).mT)
        return F.linear(block_readout._by_token(active, block).T, weight, bias)

    shapes = [(features, blocks, block), (features, blocks, state), (features, outputs, block + state)]
    inputs = leaves(*shapes, (features, features * HEADS), (features,))
    return compared(lambda t, s, *rest: block_readout.read_blocks(t, s, None, *rest), plain, inputs)


def causal_abc(length: int) -> Forms:
    mass = torch.full((2, 1, HEADS, SLOTS), no_weight(), dtype=torch.float64)
    mean = torch.zeros(2, 1, HEADS, SLOTS, WIDTH)

    def plain(query: Tensor, key: Tensor, value: Tensor, compress: Tensor) -> Tensor:
        q, *tokens = (x.flatten(0, 1).unflatten(1, (-1, running_memory.BLOCK)) for x in (query, key, value))
        x = torch.stack(tokens)
        logits = torch.einsum("sgjce,ser->sgjcr", x, compress)
        block_mean, logits = logits.softmax(dim=-2).mT @ x, logits.double()
        block_mass = logits.logsumexp(dim=-2)
        masses = torch.cat([mass.flatten(1, 2).unsqueeze(2), block_mass], dim=2).logcumsumexp(dim=2)
        old, new = (masses[:, :, :-1] - masses[:, :, 1:]).exp(), (block_mass - masses[:, :, 1:]).exp()
        means = running_memory._recur(mean.flatten(1, 2), old.float(), new.float().unsqueeze(-1) * block_mean)
        before = masses[:, :, :-1].unsqueeze(-2)
        unit = torch.maximum(before, logits[..., :1, :]).detach()
        before, weight = (before - unit).exp(), (logits - unit).clamp(max=running_memory.LARGEST).exp()
        total = weight.cumsum(dim=-2) + before
        products, past = (q @ x[0].mT).tril(), q @ means[0, :, :-1].mT
        read = (products.double() @ weight[0] + before[0] * past.double()) / total[0]
        weights = (read * WIDTH**-0.5).softmax(dim=-1) / total[1]
        mixed = (weights @ weight[1].mT).tril().float()
        return (weights * before[1]).float() @ means[1, :, :-1] + mixed @ x[1]

    inputs = leaves(*[(1, HEADS, length, WIDTH)] * 3, (2, WIDTH, SLOTS))
    return compared(lambda *x: running_memory.causal_abc(*x, None, mass, mean)[0], plain, inputs)


def mapped(kind: Any, x: Tensor, factors: Tensor | None) -> Tensor:
    return kind.forward(x, factors)


KERNELS: dict[str, Callable[[int], Forms]] = {
    "Mapped (linear CS)": in_attention("linear", "CS", linearized, "Mapped", mapped),
    "Mapped (cosformer CS)": in_attention("cosformer", "CS", linearized, "Mapped", mapped),
    "SumOfKeys": sum_of_keys,
    "MeanOfQueries": mean_of_queries,
    "KeyMeans": key_means,
    "FeatureMean (performer NS)": in_attention("performer", "NS", performer, "FeatureMean", feature_mean),
    "FeatureMean (performer NS, 64 features)": in_attention(
        "performer", "NS", performer, "FeatureMean", feature_mean, num_features=64
    ),
    "FeatureMean (performer NS, 266 features)": in_attention(
        "performer", "NS", performer, "FeatureMean", feature_mean, num_features=266
    ),
    "WeightedMeans": weighted_means,
    "Scan (s4d NS)": in_attention("s4d", "NS", s4d, "Scan", scan),
    "Scan (s4d CS)": in_attention("s4d", "CS", s4d, "Scan", scan),
    "s4d_read": readout,
    "causal_abc": causal_abc,
}
