"""Relations of numerics: exact gradients, the reference form, and lower precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from cab.verification.causality import gradient_leak, replacement_leak
from cab.verification.compare import LEAK, ROUNDING, rounding
from cab.verification.decoding import LONGEST_STEPS
from cab.verification.entries import (
    ALL_STEPS,
    CHUNKS,
    FORWARD,
    GRADIENT,
    LONGEST,
    PER_TOKEN,
    TRAINING,
    Call,
    Setup,
    lowered,
)
from cab.verification.inputs import Inputs, Module, gradients_of, leaves_of, rows_alone
from cab.verification.relation import Variant, Variants, by_blocks, near, relation, rows_of
from cab.verification.relations_of_inputs import padded
from cab.verification.subject import LONG

FAST = 5e-4
"""Limit between fast and reference implementation, which sum in a different order."""

SLOPE, SLOPE_FLOAT32 = 1e-3, 0.02
"""Limits between gradient and difference quotient, in float64 and in float32."""

STEPS = (1e-6, 1e-3)
"""Of the quotient, in float64: one that rarely crosses a kink, and one that parts in float32 resolve."""

STEPS_FLOAT32 = (1e-3, 3e-3, 1e-2, 3e-4, 1e-4, 3e-5, 1e-5)
"""Large ones for parts in lower precision, small ones since a choice of experts that changes in between is a jump."""

# --- exact gradients, and the reference form -------------------------------------------------------------------------

numerics = partial(relation, "numerics", entries=(GRADIENT,), compares=False)


@numerics(
    "relative error between gradient and central differences",
    limit=SLOPE,
    setups=(
        *(Setup(n, batch=1, seed=seed) for seed, n in enumerate((5, 19, 150), start=1)),
        Setup(19, batch=3, padding="inside", seed=4),
        Setup(19, batch=1, seed=5),
        Setup(33, batch=3, padding="left", seed=6, has_dropout=True),
        *(Setup(n, batch=1, seed=7, is_full=True) for n in (530, LONGEST)),
    ),
    applies=lambda s: s.claims.has_exact_gradient,
)
def gradient_is_derivative(call: Call) -> Variants:
    """Every gradient, of inputs and parameters, agrees with central differences in random directions."""
    training = call.setup.seed in (5, 6)
    error, limit = derivative_error(call.in_mode(training=training), call.inputs)
    mode = "in training mode " if training else ""
    yield (
        error,
        mode.rstrip(),
        limit,
        f"gradients are not the derivatives of the outputs {mode}at n={call.setup.length}",
    )


def derivative_error(module: Module, inputs: Inputs) -> tuple[float, float]:
    """Return the error of the gradient, and its limit."""
    try:
        module, inputs, limit = module.double(), inputs.map(Tensor.double), SLOPE
        error = slope_error(module, inputs, STEPS, limit)
    except Exception:  # float64 is optional
        module, inputs, limit = module.float(), inputs.map(Tensor.float), SLOPE_FLOAT32
        error = slope_error(module, inputs, STEPS_FLOAT32, limit)
    noise = rounding(module, inputs)
    return error, limit if noise < 1e-6 else 1e3 * noise  # rounding error of the quotient in a coarser dtype


def slope_error(module: Module, inputs: Inputs, steps: Sequence[float], limit: float) -> float:
    """Return the error of the slope in one random direction, relative to the norm of the gradient.

    It is that of the first step whose quotient is within the limit, else the smallest.
    """
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

    errors = []
    with torch.no_grad():
        for step in steps:
            above, below = moved(step), moved(-2.0 * step)
            moved(step)
            quotient = ((above - below) * cotangent).sum() / (2.0 * step)
            errors.append((products.sum() - quotient).abs().item() / max(products.norm().item(), 1e-30))
            if errors[-1] <= limit:
                break
    return min(errors)


@numerics(
    "relative error between fast and reference implementation",
    setups=(
        Setup(1),
        Setup(17, scale=4.0, embed_dim=24, num_heads=3),
        Setup(33, batch=3, padding="inside"),
        Setup(21, batch=3, padding="left", scale=4.0, embed_dim=50, num_heads=1),
        Setup(40, batch=3, padding="right", scale=4.0),
        Setup(67, embed_dim=16, num_heads=2, is_full=True),
        Setup(150, batch=3, padding="inside", num_heads=2, is_full=True),  # for kernels that need width 16, length 128
    ),
    applies=lambda s: s.has_reference,
    says="are not those of the reference form",
)
def fast_is_reference(call: Call) -> Variants:
    """Fast and reference implementation give equal outputs and gradients, with and without padding."""
    entry, how = (TRAINING, "in training mode") if call.setup.scale > 1.0 else (GRADIENT, "")
    values = call.run(entry)
    call.module.use_reference = True
    yield Variant(how, call, values=values, base=call.run(entry), limit=call.subject.rounded(FAST))


# --- lower precision -------------------------------------------------------------------------------------------------

precision = partial(relation, "precision", compares=False)
small = partial(Setup, embed_dim=16, num_heads=2)


def moved(call: Call, dtype: torch.dtype | None) -> Iterator[Call]:
    """Yield calls without autocast whose inputs move by up to two of their spacings in ``dtype``."""
    noise, eps = torch.Generator().manual_seed(4), torch.finfo(dtype or torch.float32).eps
    span = (1.0 - 2.0 * eps, 1.0 + 2.0 * eps)
    for _ in range(2):
        yield call.but(
            entry=replace(call.entry, dtype=None),
            inputs=call.inputs.map(lambda x: x * torch.empty(x.shape).uniform_(*span, generator=noise).to(x)),
        )


@precision(
    "relative distance between autocast and float32",
    entries=lowered(replace(GRADIENT, name="outputs and gradients")),
    against=FORWARD,
    # Sums of long x8 inputs leave float16 by their size.
    setups=(
        *(Setup(17, 1), Setup(130, 1), small(600, 1), Setup(1030, 1, 8.0, num_heads=1)),
        *(Setup(LONGEST), Setup(LONGEST, scale=4.0)),
    ),
)
def autocast_output(call: Call) -> Variants:
    """Under autocast, outputs agree with float32 and stay finite for long and large inputs; gradients are finite."""
    values = call.but(cotangent=torch.ones_like).run()
    numbers = [x for name, x in values.items() if name in PER_TOKEN]  # those of weights need a scaled loss
    yield sum(int((~x.isfinite()).sum()) for x in numbers), "NaN or inf values"
    if call.setup.scale == 1.0:  # for large inputs, a sharp softmax amplifies rounding of the logits
        yield Variant("", call, values=values, measure=partial(by_blocks, size=LONG), limit=near(call.entry.dtype))


@precision(
    "dependence on a later token",
    limit=LEAK,
    entries=lowered(TRAINING),
    setups=(Setup(37, batch=1), small(300, batch=1)),
    applies=lambda s: s.pattern.is_causal,
)
def autocast_lookahead(call: Call) -> Variants:
    """Under autocast, no output has a gradient to a later target or changes when later targets are replaced."""
    if call.setup.length == 37:
        module = call.lowering(call.in_mode(training=True))
        yield gradient_leak(module, call.inputs, torch.arange(37), "gradient")
    else:
        cuts = torch.tensor([0, 15, 63, 127, 150, 191, 255, 298])
        yield replacement_leak(call.lowering(call.module), call.inputs, cuts, 1.0, "replaced", near(call.entry.dtype))


@precision(
    "deviation of a gradient",
    limit=0.14,  # a cosine of 0.99
    entries=lowered(GRADIENT, TRAINING),
    against=GRADIENT,
    setups=(small(33, batch=1), small(33, batch=2, padding="left"), small(300, batch=1, is_full=True)),
    applies=lambda s: s.claims.has_exact_gradient,
)
def autocast_gradient(call: Call) -> Variants:
    """Under autocast, every gradient has the direction (cosine) and the size of the float32 gradient."""
    if ("training mode" in call.entry.name) != call.subject.is_random_in_training:
        yield Variant("", call, measure=partial(by_blocks, share=5.0), moved=moved(call, call.entry.dtype))


@precision(
    "relative distance of decoding",
    entries=lowered(ALL_STEPS, CHUNKS),
    setups=(19, small(LONGEST_STEPS, batch=1, is_full=True)),
    limit=lambda s: s.decode_tolerance,
    against=FORWARD,
)
def autocast_decoding(call: Call) -> Variants:
    """Under autocast, decoding by steps and prompts reproduces the parallel forward pass in float32."""
    yield Variant("", call)


precision(
    "relative distance of a padded row",
    limit=ROUNDING,
    entries=lowered(FORWARD),
    setups=(Setup(batch=5, padding="left"),),
    applies=lambda s: "left" in s.padding_layouts,
    name="autocast_padding",
    summary="Under autocast, a padded row gives the same output as without padding.",
)(padded)


@precision(
    "relative distance between bfloat16 and float32",
    entries=(FORWARD,),
    setups=(small(33, batch=1), small(700, batch=1), small(290, batch=3, padding="right")),
    applies=lambda s: torch.bfloat16 in s.autocast_dtypes,
)
def module_in_bfloat16(call: Call) -> Variants:
    """After ``module.bfloat16()``, outputs are of this type and agree with float32."""
    is_whole, dtype = call.subject.keeps_whole_contract, torch.bfloat16
    low = call.but(module=call.new_module().bfloat16(), inputs=call.inputs.map(Tensor.bfloat16))
    if call.setup.padding:
        base = low.run() if is_whole else {}
        for row, alone in rows_alone(low.inputs) if is_whole else ():
            part, changed = rows_of((slice(row, row + 1), low.inputs.real[row])), low.but(inputs=alone)
            how = f"of row {row} in bfloat16"
            yield Variant(how, changed, part, base=base, measure=by_blocks, limit=near(dtype))
        return
    call.module.load_state_dict(low.module.state_dict())
    exact = call.but(inputs=low.inputs.map(Tensor.float))
    with contextlib.suppress(*() if is_whole else (RuntimeError,)):  # an error is not a wrong output
        values, more = low.run(), moved(exact, dtype)
        yield float(values["outputs"].dtype != dtype), f"outputs of type {values['outputs'].dtype}", 0.0
        yield Variant(
            "in bfloat16", low, values=values, base=exact.run(), measure=by_blocks, limit=near(dtype), moved=more
        )
