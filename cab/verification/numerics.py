"""Numerical checks: finite values, exact gradients, and agreement with the reference implementation."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cab.verification.check import Worst, check
from cab.verification.compare import difference, gradient_floor
from cab.verification.inputs import Inputs, Module, outputs_and_gradients, with_padding
from cab.verification.subject import Subject, rounding

FAST = 5e-4
"""Limit between fast and reference implementation, which sum in a different order."""

SLOPE, SLOPE_FLOAT32 = 1e-3, 0.02
"""Limits between gradient and difference quotient, in float64 and in float32."""


@check("numerics")
def finite_gradients(subject: Subject) -> Worst:
    """For inputs of scale 0, 1 and 10, and for identical tokens, outputs and gradients are finite."""
    worst = Worst("NaN or inf values in outputs and gradients", limit=0.0)
    cases = [(0.0, 17), (1.0, 33), (10.0, 1), (10.0, 33), (10.0, 257), *((10.0, n) for n in subject.long)]
    for scale, length in cases:
        for equal in (False, True):
            module = subject.build_for(length).train()
            inputs = subject.draw(module, length, scale=scale)
            if equal:
                inputs = replace(inputs, **{name: x[:, :1].expand_as(x) for name, x in inputs.tensors().items()})
            named = outputs_and_gradients(module, inputs, torch.randn_like(inputs.query))
            for name, x in named.items():
                where = f"{name}, n={length}, inputs x{scale:g}{', all tokens equal' if equal else ''}"
                worst.add((~x.isfinite()).sum(), where)
    return worst


def has_exact_gradient(subject: Subject) -> bool:
    """Return whether the method does not stop gradients by design."""
    return bool(getattr(subject.build(), "has_exact_gradient", True))


@check("numerics", applies=has_exact_gradient, declared_in="has_exact_gradient")
def gradient_is_derivative(subject: Subject) -> Worst:
    """Every gradient, of inputs and parameters, agrees with central differences in random directions."""
    worst = Worst("relative error between gradient and central differences", limit=SLOPE)
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
        inputs = subject.draw(module, length, batch=3 if layout else 1, seed=seed)
        inputs = subject.pad(inputs, layout) if layout else inputs
        try:
            module, inputs = module.double(), inputs.double()
            errors = [
                slope_error(module, inputs, step) for step in (1e-3, 1e-6)
            ]  # the smaller step rarely crosses a kink
            limit = SLOPE
        except Exception:  # float64 is optional: use steps that float32 can resolve
            module, inputs = module.float(), inputs.float()
            errors = [slope_error(module, inputs, step) for step in (1e-2, 3e-3, 1e-3)]
            limit = SLOPE_FLOAT32
        noise = rounding(module, inputs)
        limit = limit if noise < 1e-6 else 1e3 * noise  # rounding error of the quotient in a coarser dtype
        mode = "" if dropout is None else f", in training with dropout {dropout:g}"
        worst.add(min(errors), f"n={length}, seed {seed}{f', padding {layout}' if layout else ''}{mode}", limit=limit)
    return worst


def slope_error(module: Module, inputs: Inputs, step: float) -> float:
    """Return the error of the directional derivative, relative to the norm of the gradient, in one random direction."""
    inputs = inputs.requiring_grad()
    output = inputs.run(module, seed=1)
    cotangent = torch.randn_like(output) * inputs.real.unsqueeze(-1)
    places = [
        *inputs.tensors().values(),
        *(p for p in module.parameters() if p.requires_grad and p.is_floating_point()),
    ]
    gradients = torch.autograd.grad((output * cotangent).sum(), places, allow_unused=True)
    directions = [torch.randn_like(x) for x in places]
    directions = [d * x.detach().abs().mean().clamp_min(1e-3) for d, x in zip(directions, places, strict=True)]
    slope = sum((_dot(g, d) for g, d in zip(gradients, directions, strict=True) if g is not None), start=0.0)
    size = sum((_dot(g * d, g * d) for g, d in zip(gradients, directions, strict=True) if g is not None), start=0.0)

    def moved(amount: float) -> Tensor:
        for x, d in zip(places, directions, strict=True):
            x.add_(d, alpha=amount)
        return inputs.run(module, seed=1).double()

    with torch.no_grad():
        above, below = moved(step), moved(-2.0 * step)
        moved(step)
        quotient = _dot(above - below, cotangent) / (2.0 * step)
    difference = abs(slope - quotient)
    return difference / size**0.5 if difference else 0.0


def _dot(a: Tensor, b: Tensor) -> float:
    return (a.double() * b.double()).sum().item()


def has_reference(subject: Subject) -> bool:
    """Return whether the class has a reference implementation."""
    return subject.has_reference


@check("numerics", applies=has_reference)
def fast_is_reference(subject: Subject) -> Worst:
    """Fast and reference implementation give equal outputs and gradients, with and without padding."""
    worst = Worst("relative error between fast and reference implementation", limit=FAST)
    for length, embed_dim, num_heads, layout, scale, training in (
        (1, 32, 4, "", 1.0, False),
        (17, 24, 3, "", 4.0, True),
        (33, 32, 4, "inside", 1.0, False),
        (67, 16, 2, "", 1.0, False),
        (21, 12, 1, "left", 4.0, True),
        (150, 32, 2, "inside", 1.0, False),  # for kernels that need head dimension 16 and length 128
        (40, 32, 4, "right", 1.0, True),
    ):
        module = subject.build(embed_dim=embed_dim, num_heads=num_heads).train(training)
        inputs = subject.draw(module, length, scale=scale)
        if layout:
            inputs = with_padding(subject.draw(module, length, batch=5, scale=scale), layout)
        direction = torch.randn_like(inputs.query)
        fast = outputs_and_gradients(module, inputs, direction, seed=1)
        module.use_reference = True
        slow = outputs_and_gradients(module, inputs, direction, seed=1)
        floor = gradient_floor(slow)
        how = f"{f', padding {layout}' if layout else ''}{', in training' if training else ''}"
        for name, expected in slow.items():
            where = f"{name}, n={length}, heads {num_heads}, inputs x{scale:g}{how}"
            worst.add(difference(fast[name], expected, floor), where)
    return worst
