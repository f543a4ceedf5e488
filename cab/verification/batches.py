"""Batches: a row is computed as if there were no other."""

from __future__ import annotations

from dataclasses import replace

import torch

from cab.verification.check import Worst, check
from cab.verification.compare import LEAK, ROUNDING, difference, limit_for
from cab.verification.subject import Subject, rounding

LENGTHS = ((1, 1.0), (17, 4.0), (65, 1.0), (130, 1.0))


@check("batches")
def rows_independent(subject: Subject) -> Worst:
    """New values in one row, also much larger ones, leave the other rows as they are."""
    worst = Worst("change of a row by another", limit=LEAK)
    for length, scale in LENGTHS:
        module = subject.build()
        inputs = subject.draw(module, length, batch=3, scale=scale)
        limit = limit_for(rounding(module, inputs), LEAK)
        for factor in (1.0, 5.0):
            other = subject.draw(module, length, batch=3, scale=factor * scale, seed=2)
            changed = {name: x.clone() for name, x in inputs.tensors().items()}
            for name, x in other.tensors().items():
                changed[name][1] = x[1]
            with torch.no_grad():
                before, after = inputs.run(module), replace(inputs, **changed).run(module)
            where = f"n={length}, inputs x{scale:g}, row 1 x{factor:g}"
            worst.add(difference(after[[0, 2]], before[[0, 2]]), where, limit=limit)
    return worst


@check("batches")
def rows_gradient(subject: Subject) -> Worst:
    """The gradient of a row's output to every other row is exactly zero, while training."""
    worst = Worst("gradient to another row", limit=0.0)
    for length in (1, 33):
        module = subject.build(dropout=subject.dropout).train()
        inputs = subject.draw(module, length, batch=3).requiring_grad()
        output = inputs.run(module)
        (output[1] * torch.randn_like(output[1])).sum().backward()
        for name, x in inputs.tensors().items():
            worst.add(0.0 if x.grad is None else x.grad[[0, 2]].abs().max(), f"n={length}, {name}")
    return worst


@check("batches")
def batch_size(subject: Subject) -> Worst:
    """A batch of one gives what the row gives in a batch of three."""
    worst = Worst("difference between a row alone and in a batch", limit=ROUNDING)
    for length, scale in LENGTHS:
        module = subject.build()
        inputs = subject.draw(module, length, batch=3, scale=scale)
        limit = limit_for(rounding(module, inputs), ROUNDING)
        with torch.no_grad():
            together = inputs.run(module)
            for row in range(3):
                alone = inputs.rows(slice(row, row + 1)).run(module)
                worst.add(difference(alone[0], together[row]), f"n={length}, inputs x{scale:g}, row {row}", limit=limit)
    return worst
