"""Causal patterns: nothing that comes later may reach an output, and what came earlier must."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cab.verification.check import FLOAT32, Worst, causal, check
from cab.verification.compare import LEAK, ROUNDING, difference, error_at, limit_for
from cab.verification.inputs import Inputs, Module
from cab.verification.subject import Subject, rounding


@check("causality", applies=causal)
def lookahead_gradient(subject: Subject) -> Worst:
    """The gradient of the output at i to every target after i is zero: all i, odd lengths, while training."""
    worst = Worst("gradient to a later token, relative to the largest,", limit=LEAK)
    for length, num_heads, scale, dropout in (
        (2, 4, 1.0, 0.0),
        (17, 1, 1.0, 0.0),
        (33, 2, 1.0, subject.dropout),
        (66, 4, 4.0, 0.0),
        (300, 4, 1.0, 0.0),
    ):
        module = subject.build(num_heads=num_heads, dropout=dropout).train()
        inputs = subject.draw(module, length, batch=1, scale=scale)
        leak, where = gradient_leak(module, inputs, cuts(length))
        worst.add(leak, f"n={length}, heads {num_heads}, inputs x{scale:g}, dropout {dropout:g}, {where}")
    return worst


@check("causality", applies=causal)
def lookahead_perturbation(subject: Subject) -> Worst:
    """Outputs up to i stay when every target after i is replaced: all i, borders of blocks, small and large values."""
    worst = Worst("change before the changed tokens", limit=LEAK)
    for length, num_heads, scale, later in (
        (17, 4, 1.0, 1.0),
        (33, 1, 4.0, 1.0),
        (130, 4, 1.0, 5.0),
        (520, 2, 1.0, 1.0),
        (1100, 1, 1.0, 1.0),
    ):
        module = subject.build(num_heads=num_heads)
        inputs = subject.draw(module, length, batch=1, scale=scale)
        leak, where = replacement_leak(module, inputs, cuts(length), later)
        limit = limit_for(rounding(module, inputs), LEAK)
        worst.add(leak, f"n={length}, heads {num_heads}, inputs x{scale:g}, {where}", limit=limit)
    return worst


@check("causality", applies=causal)
def lookahead_length(subject: Subject) -> Worst:
    """The output of a prefix is what the whole sequence gives there: no factor depends on the final length."""
    worst = Worst("difference between a prefix alone and in the sequence", limit=ROUNDING)
    for length, prefixes, scale in ((33, (1, 2, 16, 17, 32), 1.0), (33, (5, 31), 4.0), (300, (1, 64, 255, 257), 1.0)):
        module = subject.build()
        inputs = subject.draw(module, length, scale=scale)
        limit = limit_for(rounding(module, inputs), ROUNDING)
        with torch.no_grad():
            whole = inputs.run(module)
            for prefix in prefixes:
                alone = inputs.prefix(prefix).run(module)
                where = f"n={length}, first {prefix}, inputs x{scale:g}"
                worst.add(difference(alone, whole[:, :prefix]), where, limit=limit)
    return worst


def cuts(length: int) -> Tensor:
    """Positions to look at: all of a short sequence; of a long one the ends and the borders of blocks of 2^k."""
    if length <= 130:
        return torch.arange(length)
    borders = {0, 1, length // 2, length - 2, length - 1}
    for block in (8, 16, 32, 64, 128, 256) if length < 1000 else (512, 1024):
        for border in (block, (length // block) * block):
            borders |= {border - 1, border}
    return torch.tensor(sorted(i for i in borders if i < length))


def gradient_leak(module: Module, inputs: Inputs, positions: Tensor) -> tuple[float, str]:
    """Largest gradient of an output to a target after it, and where; one row of a batch for each position."""
    rows = Inputs(**{name: x.expand(len(positions), -1, -1) for name, x in inputs.tensors().items()}).requiring_grad()
    positions = positions.to(rows.query.device)
    output = rows.run(module)
    chosen = output[torch.arange(len(positions)), positions]
    direction = torch.randn(chosen.shape, generator=torch.Generator().manual_seed(0)).to(chosen)
    if not output.requires_grad:
        raise RuntimeError("the output does not depend on the inputs through autograd")
    (chosen * direction).sum().backward()
    assert rows.query.grad is not None, "the query gets no gradient"
    gradient = rows.query.grad.detach().double().norm(dim=-1)
    largest = gradient.amax(dim=1)
    # Never smaller than the float32 noise of outputs of this size, for outputs that hardly depend on the query.
    floor = chosen.detach().double().norm(dim=-1).median() * FLOAT32
    later = torch.arange(gradient.shape[1], device=gradient.device) > positions[:, None]
    leak = (gradient / (largest + largest.median()).clamp_min(floor / LEAK)[:, None].clamp_min(1e-30)).where(later, 0.0)
    return worst_pair(leak, positions)


def replacement_leak(module: Module, inputs: Inputs, positions: Tensor, scale: float) -> tuple[float, str]:
    """Largest change of an output when all targets after it are replaced, and where; all cuts in one batch."""
    count, length = len(positions), inputs.query.shape[1]
    device = inputs.query.device
    positions = torch.cat([torch.tensor([length]), positions]).to(device)  # the first row stays as it is
    later = torch.arange(length, device=device) > positions[:, None]
    noise = torch.randn(inputs.query.shape, generator=torch.Generator().manual_seed(2)).to(inputs.query)
    other = noise * inputs.query.std() * scale
    rows = Inputs(**{name: x.expand(count + 1, -1, -1) for name, x in inputs.tensors().items()})
    rows = replace(rows, query=torch.where(later[..., None], other, rows.query))
    with torch.no_grad():
        output = rows.run(module)
    leak = error_at(output[1:], output[:1].expand_as(output[1:])).where(~later[1:], 0.0)
    cut = leak.amax(dim=1).argmax()
    return leak[
        cut
    ].max().item(), f"output {leak[cut].argmax().item()}, tokens after {positions[cut + 1].item()} changed"


def worst_pair(leak: Tensor, positions: Tensor) -> tuple[float, str]:
    row, source = divmod(int(leak.nan_to_num(nan=torch.inf).argmax()), leak.shape[1])
    return leak[row, source].item(), f"output {positions[row].item()} from token {source}"
