"""Attention dilution (Qin et al. 2022, Section 3.2): share of attention on the nearest tokens.

Shapes: H heads, n tokens, D embedding dimension, E head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cab.analysis.subject import AnalyzedNetwork, with_heads
from cab.attention import Attention
from cab.errors import UserError
from cab.padding import PaddingMasks

POINTS = 100
"""Number of points per curve, at evenly spaced shares of neighbors."""


@dataclass(frozen=True)
class Curve:
    """The share of attention of one layer on the nearest 1%, 2%, ..., 100% of the visible tokens."""

    path: str
    mass: Tensor

    @property
    def area(self) -> float:
        """Area under the curve: 1 if each token attends to itself only, about 0.5 for uniform attention."""
        return self.mass.mean().item()


def dilution(subject: AnalyzedNetwork, *, rows: int = 4) -> list[Curve]:
    """Return the curve of each attention layer under test, averaged over heads and tokens of training examples.

    Raises:
        UserError: the pattern is a cross pattern, in which targets have no neighbors among the keys.
    """
    pattern = subject.cell.config.pattern
    if pattern.is_cross:
        raise UserError(f"dilution is not defined for cross pattern {pattern}; use NS or CS")
    generator = torch.Generator().manual_seed(0)
    curves = []
    for (path, layer), inputs in zip(subject.attention_layers(), layer_inputs(subject, rows), strict=True):
        masses = [mass_of_neighbors(effective_weights(layer, x, generator), pattern.is_causal) for x in inputs]
        curves.append(Curve(path, torch.stack(masses).mean(dim=0)))
    return curves


def layer_inputs(subject: AnalyzedNetwork, rows: int) -> list[list[Tensor]]:
    """Return the inputs [n, D] of each attention layer under test, without padding, while computing the task's loss."""
    layers = [layer for _, layer in subject.attention_layers()]
    inputs: dict[object, list[Tensor]] = {layer: [] for layer in layers}

    def keep(layer: object, args: tuple[Tensor, ...], kwargs: dict[str, Tensor | None]) -> None:
        mask = kwargs.get("query_padding_mask")
        sequences = [x if mask is None else x[~mask[row]] for row, x in enumerate(args[0])]
        inputs[layer] += [x.detach() for x in sequences if len(x)]

    hooks = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in layers]
    subject.network.eval()
    try:
        with torch.no_grad():
            subject.cell.task.loss(subject.network, subject.batch(rows))
    finally:
        for hook in hooks:
            hook.remove()
    return [inputs[layer][:rows] for layer in layers]  # of pairs, the first sequences


def effective_weights(layer: Attention, x: Tensor, generator: torch.Generator) -> Tensor:
    """Return the dependence [H, n, n] of output i on value j for one row [n, D], up to a factor per head and target.

    Computes u^T (do_i / dv_j) u with random signs u. For outputs that are weighted means of values, these are the
    weights times E; if a norm follows, they are scaled by one factor per row. For a method without heads, returns the
    norms of u^T (do_i / dx_j) as one head.
    """
    inner = with_heads(layer)
    batch = x[None]
    if inner is None:
        x = x.clone().requires_grad_()
        draws = {name: y[0] for name, y in layer.sample_noise(batch, batch, PaddingMasks()).items()}
        output = layer.compute_row(x, x, x, draws)
        signs = _signs(output[0], generator)
        return torch.stack([_gradient(y @ signs, x).norm(dim=-1) for y in output])[None]
    with torch.no_grad():
        query, key, value = (heads[0] for heads in inner.project(batch, batch, batch))
        more = {
            **inner.query_side_inputs(batch),
            **inner.key_side_inputs(batch),
            **inner.sample_noise(batch, batch, PaddingMasks()),
        }
    value = value.clone().requires_grad_()
    assert inner.reference is not None
    output = inner.reference(query, key, value, **{name: y[0] for name, y in more.items()})
    signs = _signs(output[:, 0], generator)
    reads = [_gradient((output[:, i] * signs).sum(), value) for i in range(output.shape[1])]
    return torch.stack([(read * signs[:, None]).sum(dim=-1) for read in reads], dim=1)


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(2, like.shape, generator=generator).to(like.dtype) * 2 - 1


def _gradient(y: Tensor, x: Tensor) -> Tensor:
    if not y.requires_grad:  # a target without visible keys
        return torch.zeros_like(x)
    (gradient,) = torch.autograd.grad(y, x, retain_graph=True, materialize_grads=True)
    return gradient


def mass_of_neighbors(weights: Tensor, is_causal: bool) -> Tensor:
    """Return the share of abs(weights) [H, n, n] on the nearest r of the visible tokens, r = 1%, ..., 100%: [POINTS].

    Neighbors are counted alternately on the left and right, starting with the token itself, and rounded up to whole
    tokens. Rows without weights are ignored.
    """
    length = weights.shape[-1]
    position = torch.arange(length)
    distance = position - position[:, None]
    order = (2 * distance.abs() - (distance < 0).long()).to(torch.float64)
    seen = position + 1 if is_causal else torch.full((length,), length)
    if is_causal:
        order, weights = order.masked_fill(distance > 0, torch.inf), weights.tril()
    sorted_weights = weights.abs().to(torch.float64).gather(-1, order.argsort(dim=-1).expand_as(weights))
    total = sorted_weights.sum(dim=-1)
    share = torch.arange(1, POINTS + 1, dtype=torch.float64) / POINTS
    count = (share * seen[:, None] - 1e-9).ceil().long().clamp(min=1)  # 7% of 100 is 7.000000000000001
    reached = sorted_weights.cumsum(dim=-1).gather(-1, (count - 1).expand(*weights.shape[:-1], -1))
    real = total > 0
    return (reached[real] / total[real, None]).mean(dim=0) if real.any() else torch.full((POINTS,), torch.nan)
