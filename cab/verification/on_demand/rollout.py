"""Rollout checks: what decoding must share with training beyond rounding, such as the choice among equal scores."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from cab.patterns import Pattern
from cab.replay import Replay
from cab.verification.entries import ALL_STEPS, CHUNKS, FORWARD, Call, Setup, decode, random_direction
from cab.verification.inputs import Module
from cab.verification.relation import Variant, Variants, first, relation
from cab.verification.subject import Subject

KEYS = re.compile(r"(^|[._])(to_|w)?(k|keys?|index\w*)([._]|$)")
"""Names of the parameters that make keys; if these are zero, all keys of a target have the same score."""

CUTS = range(32, 48)
"""Distances from the end of a row: one per place in blocks of up to 16 tokens."""


def key_parameters(module: Module) -> list[nn.Parameter]:
    """Return the parameters that make keys."""
    return [x for name, x in module.named_parameters() if KEYS.search(name)]


def has_exact_prefix(subject: Subject) -> bool:
    """Return whether no bit of an output is to depend on later targets."""
    return subject.pattern.is_causal and not subject.claims.noncausal_rounding


rollout = partial(relation, "rollout", compares=False)


@rollout(
    "relative error with equal scores",
    entries=(ALL_STEPS, CHUNKS, FORWARD),
    setups=(75,),
    limit=lambda s: s.decode_tolerance,
    applies=lambda s: s.decodes and bool(key_parameters(s.build())),
    says="choose other keys than the forward pass of the row",
)
def equal_scores(call: Call) -> Variants:
    """If all keys are zero, so that scores are equal, steps, prompts and a shorter row choose the keys of the row."""
    with torch.no_grad():
        for parameter in key_parameters(call.module):
            parameter.zero_()
    base, count = call.run(FORWARD), 41 if call.entry is FORWARD else call.setup.length
    part = call.but(inputs=call.inputs.targets(0, count))
    yield Variant("with equal scores", part, first(count), base=base)


@rollout(
    "change of an output by later targets",
    entries=(FORWARD,),
    setups=(Setup(96, batch=1), Setup(384, batch=1)),
    applies=has_exact_prefix,
    declared_in="claims.noncausal_rounding",
    says="round differently if later targets are replaced",
)
def prefix_bits(call: Call) -> Variants:
    """No bit of an output changes when all later targets are replaced."""
    base, other = call.run(), random_direction(call.inputs.query)
    for cut in (call.setup.length - distance for distance in CUTS):
        query = torch.cat([call.inputs.query[:, :cut], other[:, cut:]], dim=1)
        changed = call.but(inputs=replace(call.inputs, query=query))
        yield Variant(f"before target {cut}", changed, first(cut), first(cut), base=base)


@rollout(
    "error of steps that read their chunk again",
    entries=(FORWARD,),
    setups=(Setup(41, batch=1), Setup(41), Setup(150, batch=1)),
    applies=lambda s: s.prefills and s.pattern is Pattern.CS and has_exact_prefix(s),
    declared_in="claims.noncausal_rounding",
    says="of the steps of cab.Replay are not those of its row",
)
def replay_is_exact(call: Call) -> Variants:
    """Every step of :class:`cab.Replay` has the bits of the row that is read in chunks."""
    module, length = Replay(call.module, 16), call.setup.length
    with torch.no_grad():
        values, base = decode(module, call.inputs, [1] * length), module(call.inputs.query)
    yield Variant("", call, values={"outputs": values}, base={"outputs": base})
