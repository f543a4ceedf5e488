"""Numerical checks: exact gradients, and agreement with the reference."""

from __future__ import annotations

import torch
from torch import Tensor

from cab.verification.compare import rounding
from cab.verification.entries import GRADIENT, LONGEST, TRAINING, Call, Setup
from cab.verification.inputs import Inputs, Module, gradients_of, leaves_of
from cab.verification.relation import Variant, Variants, relation

FAST = 5e-4
"""Limit between fast and reference implementation, which sum in a different order."""

SLOPE, SLOPE_FLOAT32 = 1e-3, 0.02
"""Limits between gradient and difference quotient, in float64 and in float32."""


@relation(
    "numerics",
    "relative error between gradient and central differences",
    limit=SLOPE,
    entries=(GRADIENT, TRAINING),
    setups=(
        *(Setup(n, batch=1, seed=n) for n in (5, 150)),
        Setup(19, batch=3, padding="inside", seed=4),
        Setup(33, batch=3, padding="left", seed=6, has_dropout=True),
        *(Setup(n, batch=1, seed=7, is_full=True) for n in (530, LONGEST)),
    ),
    applies=lambda s: s.claims.has_exact_gradient,
    declared_in="claims.has_exact_gradient",
    compares=False,
)
def gradient_is_derivative(call: Call) -> Variants:
    """Every gradient, of inputs and parameters, agrees with central differences in random directions."""
    if call.entry is GRADIENT or call.setup.padding:
        error, limit = derivative_error(call.in_mode(training=call.entry is TRAINING), call.inputs)
        yield error, "", limit


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
    leaves = {name: x for name, x in leaves_of(module, inputs).items() if x.is_floating_point()}
    output = inputs.run(module, seed=1)
    cotangent = torch.randn_like(output) * inputs.real.unsqueeze(-1)
    slopes = gradients_of(output, leaves, cotangent)
    directions = {name: torch.randn_like(x) * x.detach().abs().mean().clamp_min(1e-3) for name, x in leaves.items()}
    products = torch.cat([(x.double() * directions[name].view_as(x)).flatten() for name, x in slopes.items()])

    def moved(amount: float) -> Tensor:
        for name, x in leaves.items():
            x.add_(directions[name], alpha=amount)
        return inputs.run(module, seed=1).double()

    with torch.no_grad():
        above, below = moved(step), moved(-2.0 * step)
        moved(step)
        quotient = ((above - below) * cotangent).sum() / (2.0 * step)
    error = (products.sum() - quotient).abs().item()
    return error / products.norm().item() if error else 0.0


@relation(
    "numerics",
    "relative error between fast and reference implementation",
    entries=(GRADIENT, TRAINING),
    setups=(
        Setup(1),
        Setup(17, scale=4.0, embed_dim=24, num_heads=3),
        Setup(33, batch=3, padding="inside"),
        Setup(21, batch=3, padding="left", scale=4.0, embed_dim=50, num_heads=1),
        Setup(40, batch=3, padding="right"),
        Setup(67, embed_dim=16, num_heads=2, is_full=True),
        Setup(
            150, batch=3, padding="inside", num_heads=2, is_full=True
        ),  # for kernels that need width 16 and length 128
    ),
    applies=lambda s: s.has_reference,
    compares=False,
)
def fast_is_reference(call: Call) -> Variants:
    """Fast and reference implementation give equal outputs and gradients, with and without padding."""
    values = call.run()
    call.module.use_reference = True
    yield Variant("of both forms", call, values=values, base=call.run(), limit=call.subject.rounded(FAST))
