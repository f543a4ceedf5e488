"""Limit check: with sufficient landmarks, window or features, an approximation equals softmax attention."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from cab.attention import Attention
from cab.patterns import Pattern
from cab.verification.check import Worst, check
from cab.verification.compare import distance
from cab.verification.inputs import Inputs, Module
from cab.verification.subject import Subject

LENGTH, SEEDS = 24, range(1, 9)


def has_limit(subject: Subject) -> bool:
    """Return whether the class declares options under which it equals softmax attention."""
    return issubclass(subject.cls, Attention) and subject.cls.softmax_limit(subject.pattern, LENGTH) is not None


@check("limits", applies=has_limit)
def softmax_limit(subject: Subject) -> Worst:
    """Under the options of its limit, the method equals softmax attention; the error decreases at every step."""
    assert issubclass(subject.cls, Attention)
    limit = subject.cls.softmax_limit(subject.pattern, LENGTH)
    assert limit is not None
    worst = Worst("relative distance from softmax attention", limit=limit.tolerance)
    before = None
    for options in limit.options:
        error = mean(_distance(subject, seed, options) for seed in SEEDS)
        is_last = options is limit.options[-1]
        chosen = ", ".join(f"{name}={value}" for name, value in options.items()) or "default options"
        if is_last:
            worst.add(error, f"n={LENGTH}, {chosen}")
        if before is not None:
            worst.add(
                error / before if before else error, f"n={LENGTH}, {chosen}, relative to the previous step", limit=1.0
            )
        before = error
    return worst


def _distance(subject: Subject, seed: int, options: Mapping[str, Any]) -> float:
    module = subject.build(seed=seed, **options)
    inputs = subject.draw(module, LENGTH, LENGTH, seed=seed)
    with torch.no_grad():
        return distance(inputs.run(module), softmax_attention(module, inputs, subject.pattern))


def softmax_attention(module: Module, inputs: Inputs, pattern: Pattern) -> Tensor:
    """Return softmax(q k^T / sqrt(E)) v with the projections of ``module``."""
    source = inputs.query if inputs.key is None else inputs.key
    values = source if inputs.value is None else inputs.value
    q, k, v = (
        module.split_heads(projection(x))
        for projection, x in ((module.q_proj, inputs.query), (module.k_proj, source), (module.v_proj, values))
    )
    logits = q @ k.transpose(-2, -1) / module.head_dim**0.5
    if pattern is Pattern.CS:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -torch.inf)
    return module.out_proj(module.merge_heads(logits.softmax(dim=-1) @ v))
