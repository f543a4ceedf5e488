"""Causality checks: in causal patterns, no output depends on later targets."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cab.verification.check import FLOAT32
from cab.verification.compare import LEAK, ROUNDING, error_at
from cab.verification.entries import FORWARD, LONGEST, TRAINING, Call, Setup, random_direction
from cab.verification.inputs import Inputs, Module, gradient_to
from cab.verification.relation import Variant, Variants, first, relation

BORDERS = (
    *(1125, 2048, 2646, 2800, 2880, 3000, 3024, 3072, 3136, 3150, 3200, 3240, 3300, 3360, 3402, 3430, 3456, 3500),
    *(3528, 3600, 3640, 3750, 3780, 3840, 3888, 3900, 3920, 3960, 4000, 4004, 4032, 4050, 4116),
)
"""Block borders: multiples of every block length from 116 to 2,066 with prime factors up to 7, and of many others."""

ODD_LENGTHS = (105, 231, 385)
"""Lengths at which every position is checked, which exposes blocks of any length up to half of them."""

leak_check = partial(relation, "causality", limit=LEAK, applies=lambda s: s.pattern.is_causal, compares=False)

ODD = tuple(Setup(n, batch=1, embed_dim=8, num_heads=1, is_full=True) for n in ODD_LENGTHS)


def _setup(length: int, num_heads: int, **more: Any) -> Setup:
    return Setup(length, batch=1, embed_dim=8 * num_heads, num_heads=num_heads, **more)


@leak_check(
    "gradient with respect to a later token, relative to the largest,",
    entries=(TRAINING,),
    setups=(
        _setup(2, 4),
        _setup(17, 1),
        _setup(33, 2, has_dropout=True),
        _setup(66, 4, scale=4.0),
        _setup(130, 1),
        *ODD,
    ),
)
def lookahead_gradient(call: Call) -> Variants:
    """No output has a gradient with respect to a later target, at every position, in training mode."""
    yield gradient_leak(call.in_mode(training=True), call.inputs, torch.arange(call.setup.length), "gradient")


@leak_check(
    "relative change of outputs before the replaced tokens",
    entries=(FORWARD,),
    setups=(_setup(17, 4), _setup(33, 1, scale=4.0), _setup(130, 1), *ODD),
)
def lookahead_perturbation(call: Call) -> Variants:
    """Output i does not change when all targets after i are replaced, at every position, for inputs of scale 1 to 5."""
    scale = 5.0 if call.setup.length == 130 else 1.0
    yield replacement_leak(call.module, call.inputs, torch.arange(call.setup.length), scale, "replaced")


@leak_check(
    "relative change of outputs before the replaced tokens",
    entries=(TRAINING,),
    setups=(
        Setup(batch=1),
        Setup(33, batch=1, has_dropout=True),
        Setup(75, batch=1, drops_nothing=True),
        Setup(LONGEST, batch=1),
    ),
)
def lookahead_in_training(call: Call) -> Variants:
    """In training mode with a fixed seed, output i does not change when all targets after i are replaced."""
    length = call.setup.length
    cuts = torch.tensor([length // 3, BORDERS[-1] - 1]) if length in call.subject.long else torch.arange(length)
    yield replacement_leak(call.in_mode(training=True), call.inputs, cuts, 3.0, "replaced")


@leak_check(
    "relative change or gradient across a block border",
    entries=(TRAINING,),
    setups=(Setup(LONGEST, batch=1),),
    is_quick=False,
)
def lookahead_long(call: Call) -> Variants:
    """No output before a block border of a long sequence depends on targets after it (gradient and replacement)."""
    row = call.inputs.requiring_grad()
    output = row.run(call.in_mode(training=True))
    for border in (border for border in BORDERS if border < call.setup.length):
        yield _leak(row, output[0, :border], torch.tensor([border - 1]), "gradient")
    for border in (BORDERS[0], call.setup.length // 2, BORDERS[-1]):
        yield replacement_leak(call.in_mode(training=False), call.inputs, torch.tensor([border - 1]), 1.0, "replaced")


@leak_check(
    "relative error between a prefix and the whole sequence",
    limit=ROUNDING,
    entries=(FORWARD,),
    setups=(Setup(33), Setup(33, scale=4.0), Setup(300), Setup(300, opens_gates=True), Setup(LONGEST)),
    says="depend on the length of the sequence",
)
def lookahead_length(call: Call) -> Variants:
    """Every prefix gives the start of the full output, so no factor depends on the final length."""
    length = call.setup.length
    for n in {33: (1, 2, 5, 16, 17, 31, 32), 300: (1, 64, 255, 257)}.get(length, (700, length // 2, length - 2)):
        yield Variant(f"of the first {n} tokens", call.but(inputs=call.inputs.targets(0, n)), first(n))


def gradient_leak(module: Module, inputs: Inputs, positions: Tensor, setup: str) -> tuple[float, str, float, str]:
    """Return the measurement of the largest gradient of an output to a later target; one row per position."""
    rows = inputs.repeated(len(positions)).requiring_grad()
    return _leak(rows, rows.run(module)[range(len(positions)), positions], positions, setup)


def _leak(rows: Inputs, chosen: Tensor, positions: Tensor, setup: str) -> tuple[float, str, float, str]:
    """Return the measurement of the gradient of ``chosen`` outputs to targets after ``positions``, one per row."""
    total = (chosen * random_direction(chosen)).sum()
    gradient = gradient_to(rows.query, total, retain_graph=True).double().norm(dim=-1)
    largest = gradient.amax(dim=1)
    # At least the float32 noise of outputs of this size, for outputs that hardly depend on the query.
    floor = chosen.detach().double().norm(dim=-1).median() * FLOAT32
    size = (largest + largest.median()).clamp_min(floor / LEAK).clamp_min(1e-30)
    later = torch.arange(gradient.shape[1]) > positions[:, None]
    leak = (gradient / size[:, None]).where(later.to(gradient.device), 0.0)
    row, token = divmod(int(leak.nan_to_num(nan=torch.inf).argmax()), leak.shape[1])
    finding = f"output {positions[row]} depends on token {token}"
    return leak[row, token].item(), f"{setup}, {finding}", LEAK, finding


def replacement_leak(
    module: Module, inputs: Inputs, positions: Tensor, scale: float, setup: str, limit: float | None = None
) -> tuple[float, str, float | None, str]:
    """Return the measurement of the largest change of an output when all later targets are replaced.

    All positions are evaluated in one batch. In training mode, the reference is a second call with unchanged rows and
    the same random numbers; in evaluation, it is the first row of the batch, which stays unchanged.
    """
    length, device = inputs.query.shape[1], inputs.query.device
    positions = torch.cat([torch.tensor([length]), positions]).to(device)
    later = torch.arange(length, device=device) > positions[:, None]
    other = random_direction(inputs.query) * inputs.query.std() * scale
    rows = inputs.repeated(len(positions))
    changed = replace(rows, query=torch.where(later[..., None], other, rows.query))
    with torch.no_grad():
        output = changed.run(module, seed=1)
        if getattr(module, "training", True):  # of the same strides, so that both sum in the same order
            expected = replace(rows, query=rows.query.contiguous()).run(module, seed=1)
        else:
            expected = output[:1].expand_as(output)
    leak = error_at(output[1:], expected[1:]).where(~later[1:], 0.0)
    cut = leak.amax(dim=1).argmax()
    finding = f"output {leak[cut].argmax()} depends on tokens after {positions[cut + 1]}"
    return leak[cut].max().item(), f"{setup}, {finding}", limit, finding
