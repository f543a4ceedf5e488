"""An attention must attend: its output has to depend on the other tokens, not on its own alone."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cab.verification.check import Worst, check
from cab.verification.subject import Subject

LENGTH, DRAWS = 258, 8

MAX_SELF_CONTRIBUTION = 0.93
"""Most of an output's change that may come from the token itself.

At initialisation, on 258 random tokens, softmax attention is at 0.59 and ABC at 0.09; S4D, which adds a multiple
of the token itself, is at 0.86. ABC as released for causal patterns, whose running sum has one term, is at 0.98,
and nears 1 with length. A class that is nearer by design says so (``max_self_contribution``), as XCiT does, whose
matrix of channels is close to uniform at first.
"""


def reads_something(subject: Subject) -> bool:
    """Constant complexity is declared by what reads no other token at all."""
    return subject.complexity != "1"


LEAST_CHANGE = 1e-3
"""Relative change of the output that new queries, keys or values make at least."""

LEAST_LONG_CHANGE = 1e-5
"""The same on thousands of tokens."""


def reads_source(subject: Subject) -> bool:
    return subject.pattern.is_cross and reads_something(subject)


@check("context", applies=reads_something)
def context_is_used(subject: Subject) -> Worst:
    """New other tokens (earlier ones in CS, the source in cross patterns) change an output, not its own token alone."""
    worst = Worst(
        "share of the output's change that its own token makes is",
        limit=getattr(subject.cls, "max_self_contribution", MAX_SELF_CONTRIBUTION),
    )
    for seed in (1, 2):
        module = subject.build(seed=seed)
        inputs = subject.draw(module, LENGTH, batch=DRAWS, seed=seed)
        fresh = subject.draw(module, LENGTH, batch=DRAWS, seed=seed + 100)
        own, others = dict(inputs.tensors()), dict(fresh.tensors())
        query, new = inputs.query, fresh.query
        last = torch.arange(LENGTH, device=query.device)[:, None] == LENGTH - 1
        if subject.pattern.is_cross:
            own["query"], others["query"] = torch.where(last, new, query), query
        else:
            own["query"], others["query"] = torch.where(last, new, query), torch.where(last, query, new)
        with torch.no_grad():
            before, with_own, with_others = (
                x.run(module)[:, -1] for x in (inputs, replace(inputs, **own), replace(inputs, **others))
            )
        by_own, by_others = _change(with_own, before), _change(with_others, before)
        share = by_own / (by_own + by_others) if by_own + by_others > 0.0 else 1.0
        worst.add(share, f"n={LENGTH}, position {LENGTH - 1}, seed {seed}")
    return worst


@check("context", applies=reads_source)
def each_input_is_used(subject: Subject) -> Worst:
    """In cross patterns the output changes with the query alone, with the key alone and with the value alone.

    With the key only where the class does not say that none is read (``uses_key``).
    """
    worst = Worst("least change that an input has to make, in parts of the change it makes, is", limit=1.0)
    # Means over thousands of random keys hardly differ: there, anything beyond rounding counts.
    for length, least in ((33, LEAST_CHANGE), *((length, LEAST_LONG_CHANGE) for length in subject.long)):
        module = subject.build_for(length)
        inputs, fresh = (subject.draw(module, length, seed=seed) for seed in (1, 2))
        with torch.no_grad():
            before = inputs.run(module)
            typical = before.double().pow(2).mean().sqrt().item()
            for name, x in fresh.tensors().items():
                if name == "key" and not getattr(subject.cls, "uses_key", True):
                    continue
                change = _change(replace(inputs, **{name: x}).run(module), before) / max(typical, 1e-30)
                worst.add(least / change if change else torch.inf, f"n={length}, {name}")
    return worst


def _change(a: Tensor, b: Tensor) -> float:
    return (a.double() - b.double()).pow(2).mean().sqrt().item()
