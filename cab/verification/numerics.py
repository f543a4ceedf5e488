"""Numerical checks: exact gradients, and agreement with the reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cab.verification.check import Measurements, check
from cab.verification.compare import errors, rounding
from cab.verification.inputs import Inputs, Module, gradients, outputs_and_gradients
from cab.verification.subject import Subject

FAST = 5e-4
"""Limit between fast and reference implementation, which sum in a different order."""

SLOPE, SLOPE_FLOAT32 = 1e-3, 0.02
"""Limits between gradient and difference quotient, in float64 and in float32."""


@check(
    "numerics",
    "relative error between gradient and central differences",
    limit=SLOPE,
    applies=lambda s: s.claims.has_exact_gradient,
    declared_in="claims.has_exact_gradient",
)
def gradient_is_derivative(subject: Subject) -> Measurements:
    """Every gradient, of inputs and parameters, agrees with central differences in random directions."""
    for length, seed, layout, dropout in (
        (5, 1, "", None),
        (19, 2, "", None),
        (150, 3, "", None),
        (19, 4, "inside", None),
        (19, 5, "", 0.0),
        (33, 6, "left", subject.dropout),
        *((n, 7, "", None) for n in (530, *subject.long) if subject.long),
    ):
        module = subject.build_for(length, seed=seed, dropout=dropout or 0.0).train(dropout is not None)
        inputs = subject.draw(module, length, batch=3 if layout else 1, seed=seed, padding=layout)
        error, limit = derivative_error(module, inputs)
        mode = "" if dropout is None else f", in training with dropout {dropout:g}"
        yield error, f"n={length}, seed {seed}{f', padding {layout}' if layout else ''}{mode}", limit


def derivative_error(module: Module, inputs: Inputs) -> tuple[float, float]:
    """Return the smallest error of the gradient over some steps of the difference quotient, and its limit."""
    try:
        module, inputs, limit = module.double(), inputs.map(Tensor.double), SLOPE
        error = slope_error(module, inputs, 1e-6)  # rarely crosses a kink
        if error > SLOPE:  # parts may compute in float32, which a larger step resolves
            error = min(error, slope_error(module, inputs, 1e-3))
    except Exception:  # float64 is optional: use steps that float32 can resolve
        module, inputs, limit = module.float(), inputs.map(Tensor.float), SLOPE_FLOAT32
        error = min(slope_error(module, inputs, step) for step in (1e-2, 3e-3, 1e-3))
    noise = rounding(module, inputs)
    return error, limit if noise < 1e-6 else 1e3 * noise  # rounding error of the quotient in a coarser dtype


def slope_error(module: Module, inputs: Inputs, step: float) -> float:
    """Return the error of the directional derivative, relative to the norm of the gradient, in one random direction."""
    inputs = inputs.requiring_grad()
    output = inputs.run(module, seed=1)
    cotangent = torch.randn_like(output) * inputs.real.unsqueeze(-1)
    parameters = [p for p in module.parameters() if p.requires_grad and p.is_floating_point()]
    leaves = [*inputs.tensors().values(), *parameters]
    slopes = gradients((output * cotangent).sum(), leaves)
    directions = [torch.randn_like(x) * x.detach().abs().mean().clamp_min(1e-3) for x in leaves]
    products = [(g, d) for g, d in zip(slopes, directions, strict=True) if g is not None]
    slope = sum((_dot(g, d) for g, d in products), start=0.0)
    size = sum((_dot(g * d, g * d) for g, d in products), start=0.0) ** 0.5

    def moved(amount: float) -> Tensor:
        for x, d in zip(leaves, directions, strict=True):
            x.add_(d, alpha=amount)
        return inputs.run(module, seed=1).double()

    with torch.no_grad():
        above, below = moved(step), moved(-2.0 * step)
        moved(step)
        quotient = _dot(above - below, cotangent) / (2.0 * step)
    error = abs(slope - quotient)
    return error / size if error else 0.0


def _dot(a: Tensor, b: Tensor) -> float:
    return (a.double() * b.double()).sum().item()


CASES = (
    (1, 32, 4, "", 1.0, False),
    (17, 24, 3, "", 4.0, True),
    (33, 32, 4, "inside", 1.0, False),
    (21, 50, 1, "left", 4.0, True),
    (40, 32, 4, "right", 1.0, True),
    (67, 16, 2, "", 1.0, False),
    (150, 32, 2, "inside", 1.0, False),  # for kernels that need head dimension 16 and length 128
)
"""Length, width, heads, layout of padding, scale and training mode; the last two are not in the quick suite."""


@check(
    "numerics",
    "relative error between fast and reference implementation",
    limit=FAST,
    applies=lambda s: s.has_reference,
)
def fast_is_reference(subject: Subject) -> Measurements:
    """Fast and reference implementation give equal outputs and gradients, with and without padding."""
    for length, embed_dim, num_heads, layout, scale, training in CASES if subject.long else CASES[:5]:
        size: dict[str, Any] = {"embed_dim": embed_dim, "num_heads": num_heads}
        batch = 3 if layout else 2
        module, inputs = subject.case(length, batch=batch, scale=scale, padding=layout, training=training, **size)
        direction = torch.randn_like(inputs.query)
        fast = outputs_and_gradients(module, inputs, direction, seed=1)
        module.use_reference = True
        slow = outputs_and_gradients(module, inputs, direction, seed=1)
        how = f"{f', padding {layout}' if layout else ''}{', in training' if training else ''}"
        yield from errors(fast, slow, f"n={length}, heads {num_heads}, inputs x{scale:g}{how}")
