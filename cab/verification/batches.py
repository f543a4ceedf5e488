"""Batch checks: the output of a row does not depend on the other rows."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cab.verification.check import Worst, check
from cab.verification.compare import LEAK, ROUNDING, difference, error_at, limit_for
from cab.verification.inputs import Inputs, Module
from cab.verification.near_ties import largest_errors
from cab.verification.subject import Subject, rounding

LENGTHS = ((1, 1.0), (17, 4.0), (65, 1.0), (130, 1.0))
MANY = ((17, 7), (17, 40), (3, 300))
"""Lengths and batch sizes of larger batches."""


@check("batches")
def rows_independent(subject: Subject) -> Worst:
    """Rows are independent: replacing one row, even with values of 5 times the scale, leaves the others unchanged."""
    worst = Worst("relative change of the other rows", limit=LEAK)
    for length, scale in (*LENGTHS, *((n, 1.0) for n in subject.long)):
        module = subject.build_for(length)
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
def rows_in_training(subject: Subject) -> Worst:
    """In training mode with a fixed seed, the output of a row does not change when another row is replaced."""
    worst = Worst("relative change of the other rows", limit=LEAK)
    for length, batch, dropout in ((17, 3, 0.0), (33, 9, subject.dropout), *((n, 3, 0.0) for n in subject.long)):
        module = subject.build_for(length, dropout=dropout).train()
        inputs = subject.draw(module, length, batch=batch)
        limit = limit_for(rounding(module, inputs), LEAK)
        changed = {name: x.clone() for name, x in inputs.tensors().items()}
        for name, x in subject.draw(module, length, batch=batch, scale=5.0, seed=2).tensors().items():
            changed[name][1] = x[1]
        with torch.no_grad():
            before, after = inputs.run(module, seed=1), replace(inputs, **changed).run(module, seed=1)
        kept = torch.arange(batch) != 1
        where = f"n={length}, {batch} rows, dropout {dropout:g}, row 1 x5"
        worst.add(difference(after[kept], before[kept]), where, limit=limit)
    return worst


@check("batches")
def rows_gradient(subject: Subject) -> Worst:
    """In training mode, the gradient of a row's output with respect to every other row is exactly zero."""
    worst = Worst("gradient with respect to another row", limit=0.0)
    for length in (1, 33, *subject.long):
        module = subject.build_for(length, dropout=subject.dropout).train()
        batch = 2 if length in subject.long else 3
        inputs = subject.draw(module, length, batch=batch).requiring_grad()
        output = inputs.run(module)
        (output[1] * torch.randn_like(output[1])).sum().backward()
        for name, x in inputs.tensors().items():
            worst.add(0.0 if x.grad is None else x.grad[torch.arange(batch) != 1].abs().max(), f"n={length}, {name}")
    return worst


@check("batches")
def batch_size(subject: Subject) -> Worst:
    """Every row gives the same output in a batch of one, of three and of up to 300."""
    worst = Worst("relative error between a single row and the same row in a batch", limit=ROUNDING)
    cases = [(length, 3, scale) for length, scale in LENGTHS] + [(length, batch, 1.0) for length, batch in MANY]
    for length, batch, scale in cases + [(length, 3, 1.0) for length in subject.long]:
        module = subject.build_for(length)
        inputs = subject.draw(module, length, batch=batch, scale=scale)
        limit = limit_for(rounding(module, inputs), ROUNDING)
        for row, error in largest_errors(row_errors, module, inputs, limit=limit).items():
            worst.add(error, f"n={length}, {batch} rows, inputs x{scale:g}, {row}", limit=limit)
    return worst


@torch.no_grad()
def row_errors(module: Module, inputs: Inputs) -> dict[str, Tensor]:
    """Return the error at every target of some rows as a batch of one."""
    together, batch = inputs.run(module), len(inputs.query)
    rows = {row: inputs.rows(slice(row, row + 1)) for row in sorted({0, 1, 2, batch // 2, batch - 1})}
    return {f"row {row}": error_at(alone.run(module)[0], together[row]) for row, alone in rows.items()}
