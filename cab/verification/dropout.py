"""Dropout checks: the declared rate, and rescaling that preserves the mean."""

from __future__ import annotations

import torch
from torch import Tensor

from cab.verification.check import Worst, check
from cab.verification.subject import Subject

RATES = (0.1, 0.5)
ROWS = 4096
"""Number of equal rows with independent dropout: the standard error of a mean is 1 / 64 of the standard deviation."""


def drops(subject: Subject) -> bool:
    """Return whether the class uses dropout and has no other randomness in training."""
    if subject.dropout == 0.0 or subject.is_random_in_training:
        return False
    return bool(_parts(subject, 0.5, 5).std() > 1e-3)


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


@torch.no_grad()
def _parts(subject: Subject, rate: float, length: int) -> Tensor:
    """Return the coefficients [ROWS] of the output without dropout in outputs with dropout."""
    module = subject.build(num_heads=1, dropout=rate)
    inputs = subject.draw(module, length, length, batch=1).repeated(ROWS)
    expected = inputs.rows(slice(0, 1)).run(module)[0].double()
    draws = inputs.run(module.train(), seed=1).double()
    last = getattr(module, "out_proj", None)
    bias = getattr(last, "bias", None)
    if bias is not None:  # added after dropout, so it would mask the effect
        expected, draws = expected - bias.double(), draws - bias.double()
    return (draws * expected).sum((1, 2)) / expected.pow(2).sum().clamp_min(1e-30)
