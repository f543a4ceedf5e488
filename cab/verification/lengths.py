"""Length checks: any number of target and source tokens from one on."""

from __future__ import annotations

import torch

from cab.verification.check import Worst, check
from cab.verification.compare import difference
from cab.verification.subject import Subject

ANY = (2, 3, 4, 5, 7, 8, 11, 15, 16, 17, 24, 31, 32, 33, 47, 63, 64, 65, 96, 100, 127, 128, 129, 192, 255, 257)
BEYOND = (385, 700, 1025, 2049, 3001)
TURNS = ((33, 3), (130, 3), (17, 3), (257, 2), (130, 3), (1, 4), (65, 3), (33, 3))
"""Lengths and batch sizes of consecutive calls of one module."""

PAIRS = ((1, 1), (1, 17), (17, 1), (1, 130), (130, 1), (5, 64), (64, 5), (33, 33), (129, 65))


@check("lengths")
def length_one(subject: Subject) -> Worst:
    """One target token, also with one source token, gives finite outputs and gradients."""
    return runs(subject, [(1, 1), (1, 2)] if subject.pattern.is_cross else [(1, 1)])


@check("lengths")
def any_length(subject: Subject) -> Worst:
    """Every length gives finite outputs and gradients in the shape of the input, for any window or block size."""
    pairs = [(length, length) for length in ANY]
    if subject.pattern.is_cross:
        pairs += [*PAIRS, *((7, length) for length in subject.long)]
    return runs(subject, pairs + [(length, length) for length in (*BEYOND, *subject.long) if subject.long])


@check("lengths")
def lengths_in_turn(subject: Subject) -> Worst:
    """No output depends on the lengths of earlier calls."""
    worst = Worst("relative error compared with a new module", limit=0.0)
    for training in (False, True):
        used = subject.build().train(training)
        for turn, (length, batch) in enumerate(TURNS):
            fresh = subject.build().train(training)
            inputs = subject.draw(fresh, length, batch=batch, seed=10 + turn)
            inputs = subject.pad(inputs, "left") if turn % 2 else inputs
            with torch.no_grad():
                actual, expected = (inputs.run(module, seed=1)[inputs.real] for module in (used, fresh))
            before = ", ".join(str(n) for n, _ in TURNS[:turn]) or "no call"
            worst.add(difference(actual, expected), f"n={length}, {batch} rows, after {before}")
    return worst


def runs(subject: Subject, pairs: list[tuple[int, int]]) -> Worst:
    """Count NaN and inf values and gradients, over lengths of targets and source and numbers of heads."""
    worst = Worst("NaN or inf values and gradients", limit=0.0)
    for index, (length, source_length) in enumerate(pairs):
        embed_dim, num_heads = ((32, 4), (24, 3), (8, 1))[index % 3]
        where = f"n={length}, m={source_length}" if subject.pattern.is_cross else f"n={length}"
        if max(length, source_length) > max(ANY):
            embed_dim, num_heads = 8, 1
        module = subject.build(embed_dim=embed_dim, num_heads=num_heads).train()
        inputs = subject.draw(module, length, source_length, batch=1 + index % 2).requiring_grad()
        try:
            output = inputs.run(module)
            output.sum().backward()
        except Exception as error:
            raise RuntimeError(f"{where}: {type(error).__name__}: {error}") from error
        if output.shape != inputs.query.shape:
            raise ValueError(f"{where}: output has shape {tuple(output.shape)}, query {tuple(inputs.query.shape)}")
        gradients = [x.grad for x in inputs.tensors().values() if x.grad is not None]
        worst.add(sum(int((~x.isfinite()).sum()) for x in [output, *gradients]), where)
    return worst
