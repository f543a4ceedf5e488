"""Attention dilution (Qin et al. 2022, section 3.2): how much of a token's attention falls on how many neighbours.

Shapes: H heads, n tokens, D width, E width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cab.analysis.subject import Subject, with_heads
from cab.attention import Attention
from cab.errors import UserError
from cab.padding import PaddingMasks

POINTS = 100
"""Of a curve, evenly spaced shares of neighbours."""


@dataclass(frozen=True)
class Curve:
    """Of one layer: the share of attention that falls on the nearest 1%, 2%, ..., 100% of the tokens seen."""

    path: str
    mass: Tensor

    @property
    def area(self) -> float:
        """Below the curve: 1 is all attention on the token itself, a half about uniform attention."""
        return self.mass.mean().item()


def dilution(subject: Subject, *, rows: int = 4) -> list[Curve]:
    """The curve of each slot under test, mean over the heads and tokens of some rows of training data.

    Raises:
        ValueError: in a cross pattern, where a target has no neighbours among the keys.
    """
    pattern = subject.cell.config.pattern
    if pattern.is_cross:
        raise UserError(f"dilution is about the neighbours of a token; pattern {pattern} has none: choose NS or CS")
    generator = torch.Generator().manual_seed(0)
    curves = []
    for (path, slot), inputs in zip(subject.attention_layers(), layer_inputs(subject, rows), strict=True):
        masses = [mass_of_neighbours(effective_weights(slot, x, generator), pattern.is_causal) for x in inputs]
        curves.append(Curve(path, torch.stack(masses).mean(dim=0)))
    return curves


def uniform_area(length: int, is_causal: bool) -> float:
    """The area of a layer that weighs all tokens it sees alike: a half, and something for short rows."""
    return mass_of_neighbours(torch.ones(1, length, length), is_causal).mean().item()


def layer_inputs(subject: Subject, rows: int) -> list[list[Tensor]]:
    """What enters each slot under test, row by row [n, D] without padding, while the task's loss is formed."""
    seen: list[list[Tensor]] = []
    hooks = []
    for _, slot in subject.attention_layers():
        kept: list[Tensor] = []
        seen.append(kept)

        def keep(_slot: object, args: tuple[Tensor, ...], kwargs: dict[str, Tensor | None], kept=kept) -> None:  # type: ignore[no-untyped-def]
            mask = kwargs.get("query_padding_mask")
            found = [x if mask is None else x[~mask[row]] for row, x in enumerate(args[0])]
            kept.extend(x.detach() for x in found if len(x))

        hooks.append(slot.register_forward_pre_hook(keep, with_kwargs=True))
    subject.network.eval()
    try:
        with torch.no_grad():
            subject.cell.task.loss(subject.network, subject.batch(rows))
    finally:
        for hook in hooks:
            hook.remove()
    return [kept[:rows] for kept in seen]


def effective_weights(slot: Attention, x: Tensor, generator: torch.Generator) -> Tensor:
    """[H, n, n]: how output i follows value j, of one row [n, D], up to a factor of each head and target.

    With u of random signs, u^T (do_i / dv_j) u: where outputs are weighted means of values these are the weights,
    E times; where a norm follows, the weights before it, times one number a row. A method that is no function of
    heads has, as one head, the norms of u^T (do_i / dx_j).
    """
    inner = with_heads(slot)
    row = x[None]
    if inner is None:
        x = x.clone().requires_grad_()
        draws = {name: y[0] for name, y in slot.sample_noise(row, row, PaddingMasks()).items()}
        output = slot.compute_row(x, x, x, draws)
        signs = _signs(output[0], generator)
        return torch.stack([_gradient(y @ signs, x).norm(dim=-1) for y in output])[None]
    with torch.no_grad():
        query, key, value = (heads[0] for heads in inner.project(row, row, row))
        more = {
            **inner.query_side_inputs(row),
            **inner.key_side_inputs(row),
            **inner.sample_noise(row, row, PaddingMasks()),
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
    if not y.requires_grad:  # of a target that sees nothing
        return torch.zeros_like(x)
    (gradient,) = torch.autograd.grad(y, x, retain_graph=True, materialize_grads=True)
    return gradient


def mass_of_neighbours(weights: Tensor, is_causal: bool) -> Tensor:
    """The share of |weights| [H, n, n] on the nearest r of the tokens that each sees, r = 1%, ..., 100%: [POINTS].

    Neighbours are taken alternately left and right, the token itself first, as many as there are on each side, and
    rounded up to whole tokens; of signed weights the absolute values count. A row without weights does not.
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
    count = (share * seen[:, None] - 1e-9).ceil().long().clamp(min=1)
    reached = sorted_weights.cumsum(dim=-1).gather(-1, (count - 1).expand(*weights.shape[:-1], -1))
    real = total > 0
    return (reached[real] / total[real, None]).mean(dim=0) if real.any() else torch.full((POINTS,), torch.nan)
