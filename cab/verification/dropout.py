"""Dropout checks: the declared rate, and rescaling that preserves the mean."""

from __future__ import annotations

import torch
from torch import Tensor

from cab.verification.check import Worst, check
from cab.verification.subject import Subject

RATES = (0.1, 0.5)
ROWS = 4096
"""Number of equal rows with independent dropout: the standard error of a mean is 1 / 64 of the standard deviation."""

DRAWN, LEAST_DISTANCE = 24, 1e-3
"""Number of equal sequences per call, and smallest distance of two samples relative to the typical distance."""

DRAWS = 16
"""Inputs that are tried until the output without dropout is not exactly 0."""

SAMPLES, SIMILAR = 512, 0.3
"""Number of samples, and largest similarity of the dropout of two heads or positions."""


def drops(subject: Subject) -> bool:
    """Return whether the class uses dropout and has no other randomness in training."""
    if subject.dropout == 0.0 or subject.is_random_in_training:
        return False
    samples = torch.cat([_parts(subject, 0.5, 5, rows=DRAWN, seed=seed) for seed in (1, 2)])
    return bool(samples.std() > 1e-3)


def drops_in_heads(subject: Subject) -> bool:
    """Return whether the class uses dropout and has heads that its last projection merges."""
    width = getattr(getattr(subject.build(), "out_proj", None), "weight", torch.empty(0)).shape
    return len(width) == 2 and width[0] == width[1] and hasattr(subject.build(), "num_heads") and drops(subject)


@check("dropout", applies=drops)
def dropout_mean(subject: Subject) -> Worst:
    """On average over many dropout samples, the output equals the output without dropout."""
    worst = Worst("relative error of the mean output", limit=0.0)
    for rate in RATES:
        for length in (1, 5):
            parts = _parts(subject, rate, length)
            noise = float(parts.std()) / ROWS**0.5
            worst.add(abs(float(parts.mean()) - 1.0), f"n={length}, dropout {rate:g}", limit=0.03 + 5.0 * noise)
    return worst


@check("dropout", applies=drops)
def dropout_rate(subject: Subject) -> Worst:
    """Both the share of dropped weights and the variance of outputs agree with the declared dropout rate."""
    worst = Worst("error of the dropout rate", limit=0.0)
    low, high = (_parts(subject, rate, 5).var().item() for rate in RATES)
    expected = RATES[1] / (1.0 - RATES[1]) / (RATES[0] / (1.0 - RATES[0]))
    ratio = high / low / expected if low else torch.inf
    worst.add(abs(ratio - 1.0), f"n=5, variances at dropout {RATES[0]:g} and {RATES[1]:g}", limit=0.25)
    for rate in RATES:
        parts = _parts(subject, rate, 1)
        kept = parts[parts.abs() > 1e-3]
        if len(kept) and float(kept.std()) < 1e-3:  # a single weight, kept or dropped
            noise = (rate * (1.0 - rate) / ROWS) ** 0.5
            worst.add(abs(1.0 - len(kept) / ROWS - rate), f"n=1, dropout {rate:g}", limit=0.01 + 5.0 * noise)
    return worst


@check("dropout", applies=drops)
def dropout_differs(subject: Subject) -> Worst:
    """Sequences, calls and modules draw dropout separately: no two of them drop the same."""
    worst = Worst("required distance of two samples, relative to the measured distance,", limit=1.0)
    length = 40  # a sparse method may have few weights in short sequences
    first, second = (subject.build(dropout=0.5).train() for _ in range(2))
    inputs = subject.draw(first, length, length, batch=1).repeated(DRAWN)
    with torch.no_grad():
        torch.manual_seed(1)
        samples = [inputs.run(module).flatten(1).double() for module in (first, first, second)]
    between = torch.cdist(torch.cat(samples), torch.cat(samples))
    typical = between.median().clamp_min(1e-30)
    between.fill_diagonal_(torch.inf)
    pair = int(between.argmin())
    a, b = (f"sequence {i % DRAWN} of call {i // DRAWN}" for i in divmod(pair, len(between)))
    worst.add(LEAST_DISTANCE * typical / between.min().clamp_min(1e-30), f"n={length}, {a} and {b}")
    return worst


@check("dropout", applies=drops_in_heads, declared_in="shares_dropout")
def dropout_per_head(subject: Subject) -> Worst:
    """Heads and positions draw dropout separately."""
    shared = getattr(subject.cls, "shares_dropout", ())
    worst = Worst("similarity of the dropout of two heads or positions", limit=SIMILAR)
    module = subject.build(dropout=0.5)
    module.out_proj.weight.data.copy_(torch.eye(module.embed_dim))
    inputs = subject.draw(module, 6, 6, batch=1).repeated(SAMPLES)
    with torch.no_grad():
        noise = inputs.run(module.train(), seed=1).double()
    noise = (noise - noise.mean(0)).unflatten(-1, (module.num_heads, -1))
    for head in range(1, module.num_heads):
        limit = torch.inf if "heads" in shared else SIMILAR
        worst.add(_similarity(noise[:, -1, 0], noise[:, -1, head]), f"n=6, heads 0 and {head}", limit=limit)
    for position in (3, 4):
        limit = torch.inf if "positions" in shared else SIMILAR
        worst.add(_similarity(noise[:, 5, 0], noise[:, position, 0]), f"n=6, positions 5 and {position}", limit=limit)
    return worst


def _similarity(a: Tensor, b: Tensor) -> float:
    """Return the linear similarity (CKA) of two centered samples [S, E]: near 0 if independent, near 1 if shared."""
    size = (a.mT @ a).norm() * (b.mT @ b).norm()
    return float((a.mT @ b).norm() ** 2 / size.clamp_min(1e-30))


@torch.no_grad()
def _parts(subject: Subject, rate: float, length: int, *, rows: int = ROWS, seed: int = 1) -> Tensor:
    """Return the coefficients [rows] of the output without dropout in outputs with dropout."""
    module = subject.build(num_heads=1, dropout=rate)
    bias = getattr(getattr(module, "out_proj", None), "bias", None)
    shift = 0.0 if bias is None else bias.double()  # added after dropout, so it would mask the effect
    for draw in range(1, DRAWS + 1):
        inputs = subject.draw(module, length, length, batch=1, seed=draw)
        expected = inputs.run(module)[0].double() - shift
        if expected.any():  # an output of exactly 0, as of ReLU weights, has no coefficient
            break
    draws = inputs.repeated(rows).run(module.train(), seed=seed).double() - shift
    return (draws * expected).sum((1, 2)) / expected.pow(2).sum().clamp_min(1e-30)
