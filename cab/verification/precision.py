"""Relations of precision: under autocast and in bfloat16, every entry computes what it computes in float32."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from cab.verification.causality import gradient_leak, replacement_leak
from cab.verification.compare import LEAK, distance
from cab.verification.decoding import LONGEST_STEPS
from cab.verification.entries import ALL_STEPS, FORWARD, GRADIENT, LONGEST, TRAINING, Call, Setup
from cab.verification.relation import Variant, Variants, relation
from cab.verification.subject import Subject

precision = partial(relation, "precision", against=FORWARD, compares=False, applies=lambda s: bool(s.autocast_dtypes))
small = partial(Setup, embed_dim=16, num_heads=2)

STEEPEST = 0.14
"""Largest relative distance of a gradient: a cosine of 0.99."""
CUTS = (0, 15, 63, 127, 150, 191, 255, 298)


def autocast(subject: Subject, dtype: torch.dtype) -> torch.autocast:
    """Return the autocast to ``dtype`` on the subject's device."""
    return torch.autocast(subject.device.partition(":")[0], dtype=dtype)


def near(dtype: torch.dtype) -> float:
    """Return the limit for two computations in ``dtype``: eight times its machine epsilon."""
    return 8.0 * torch.finfo(dtype).eps


def by_blocks(actual: Tensor, expected: Tensor, floor: float) -> Tensor:
    """Return the distance of every 128 tokens of a row, or of a parameter."""
    size = 128 if expected.dim() == 3 else max(expected.shape[1], 1)
    blocks = (pair for row in zip(actual, expected, strict=True) for pair in zip(*(x.split(size) for x in row)))
    return torch.tensor([distance(*pair, floor) for pair in blocks])


def outputs_by_blocks(actual: Tensor, expected: Tensor, _floor: float) -> Tensor:
    """Return the distance of every 128 tokens of a row, however small the outputs."""
    return by_blocks(actual, expected, 0.0)


def gradients_by_blocks(actual: Tensor, expected: Tensor, floor: float) -> Tensor:
    return by_blocks(actual, expected, 5.0 * floor)


def lowered(call: Call) -> Iterator[tuple[torch.dtype, str, Call]]:
    """Yield each autocast dtype and the call under it; the backward pass is outside autocast, as in training."""
    for dtype in call.subject.autocast_dtypes:
        module = copy.copy(call.module)
        for name in ("forward", "init_state", "step", "prefill"):
            if hasattr(module, name):
                setattr(module, name, autocast(call.subject, dtype)(getattr(module, name)))
        yield dtype, f"under {_name(dtype)}", call.but(module=module)


@precision(
    "relative distance between autocast and float32",
    entries=(GRADIENT,),
    setups=(
        *(
            Setup(n, batch=1, scale=scale, num_heads=heads)
            for n, heads, scale in ((17, 4, 1.0), (130, 4, 1.0), (1030, 1, 8.0))
        ),
        *(Setup(LONGEST, batch=1, scale=scale, num_heads=2) for scale in (1.0, 4.0)),
    ),
    declared_in="autocast_dtypes",
)
def autocast_output(call: Call) -> Variants:
    """Under autocast, outputs agree with float32 and stay finite for long and large inputs; gradients are finite."""
    for dtype, how, low in lowered(call):
        values = low.but(cotangent=torch.ones_like).run()
        yield sum(int((~x.isfinite()).sum()) for x in values.values()), f"NaN or inf values, {_name(dtype)}"
        if call.setup.scale == 1.0:  # for large inputs, a sharp softmax amplifies rounding of the logits
            yield Variant(how, low, values=values, measure=outputs_by_blocks, limit=near(dtype))


def under_autocast(call: Call) -> Variants:
    for dtype, how, low in lowered(call):
        yield Variant(how, low, measure=outputs_by_blocks, limit=near(dtype))


precision(
    "relative distance of a padded row",
    entries=(FORWARD,),
    setups=(Setup(17, batch=5, padding="left"),),
    applies=lambda s: s.autocast_dtypes and "left" in s.padding_layouts,
    name="autocast_padding",
    summary="Under autocast, padded rows agree with float32.",
)(under_autocast)
precision(
    "relative distance between decoding and the parallel forward",
    entries=(ALL_STEPS,),
    setups=(19, small(LONGEST_STEPS, batch=1, is_full=True)),
    limit=lambda s: s.decode_tolerance,
    applies=lambda s: s.autocast_dtypes and s.decodes,
    name="autocast_decoding",
    summary="Under autocast, step-by-step decoding reproduces the parallel forward pass.",
)(under_autocast)


@precision(
    "dependence on a later token",
    limit=LEAK,
    entries=(TRAINING,),
    setups=(Setup(37, batch=1), small(300, batch=1)),
    applies=lambda s: s.autocast_dtypes and s.pattern.is_causal,
)
def autocast_lookahead(call: Call) -> Variants:
    """Under autocast, no output has a gradient to a later target or changes when later targets are replaced."""
    for dtype, how, low in lowered(call):
        if call.setup.length == 37:
            yield gradient_leak(low.in_mode(training=True), low.inputs, torch.arange(37), f"{how}, gradient")
        else:
            yield replacement_leak(low.module, low.inputs, torch.tensor(CUTS), 1.0, how, near(dtype))


@precision(
    "deviation of a gradient",
    limit=STEEPEST,
    entries=(GRADIENT, TRAINING),
    setups=(small(33, batch=1), small(33, batch=3, padding="left"), small(300, batch=1, is_full=True)),
    applies=lambda s: s.autocast_dtypes and s.claims.has_exact_gradient,
)
def autocast_gradient(call: Call) -> Variants:
    """Under autocast, every gradient has the direction (cosine) and the size of the float32 gradient."""
    if (call.entry is GRADIENT) == call.subject.is_random_in_training:
        base = call.run()
        for dtype, how, low in lowered(call):
            yield Variant(how, low, base=base, measure=gradients_by_blocks, limit=STEEPEST, moved=moved(call, dtype))


@precision(
    "relative distance between bfloat16 and float32",
    entries=(FORWARD,),
    setups=(small(33, batch=1), small(700, batch=1), small(290, batch=3, padding="right")),
    applies=lambda s: torch.bfloat16 in s.autocast_dtypes,
    declared_in="autocast_dtypes",
)
def module_in_bfloat16(call: Call) -> Variants:
    """After ``module.bfloat16()``, outputs are of this type and agree with float32."""
    is_whole, dtype = call.subject.keeps_whole_contract, torch.bfloat16
    if call.setup.padding and not is_whole:
        return
    low = call.but(module=call.new_module().bfloat16(), inputs=call.inputs.map(Tensor.bfloat16))
    call.module.load_state_dict(low.module.state_dict())
    exact = call.but(inputs=low.inputs.map(Tensor.float))
    with contextlib.suppress(*() if is_whole else (RuntimeError,)):  # an error is not a wrong output
        values = low.run()
        yield float(values["outputs"].dtype != dtype), f"output of type {_name(values['outputs'].dtype)}", 0.0
        yield Variant(
            "in bfloat16",
            low,
            values=values,
            base=exact.run(),
            measure=outputs_by_blocks,
            limit=near(dtype),
            moved=moved(exact, dtype),
        )


def moved(call: Call, dtype: torch.dtype) -> Iterator[Call]:
    """Yield calls whose inputs move by up to two of their spacings in ``dtype``, in two samples."""
    generator = torch.Generator().manual_seed(4)

    def move(x: Tensor) -> Tensor:
        noise = 2.0 * torch.rand(x.shape, generator=generator).to(x) - 1.0
        return x * (1.0 + 2.0 * torch.finfo(dtype).eps * noise)

    for _ in range(2):
        yield call.but(inputs=call.inputs.map(move))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
