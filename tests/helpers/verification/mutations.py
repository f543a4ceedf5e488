"""Mutations: attentions with one real defect each, and the checks that must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from cab import Attention, PaddingMasks, Pattern
from cab.verification import run_checks, select_checks
from cab.verification.subject import LONG, Subject

MUTATIONS = []
"""Class, pattern, failing checks and the length that shows the defect, or 0 in the quick suite."""

MEDIUM = 1700
"""Long for a check, at a sixth of the work of the usual length."""

NEVER = float("-inf")


def future(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def hide_padding(logits: Tensor, padding: Tensor | None) -> Tensor:
    return logits if padding is None else logits.masked_fill(padding[:, None, None], torch.finfo(logits.dtype).min)


class Method(Attention):
    """An attention whose further parameters and buffers are made by ``set_up``."""

    def __init__(self, *, pattern, embed_dim, num_heads, dropout=0.0):
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        self.set_up()

    def set_up(self):
        pass


class Weighted(Method):
    """Sound softmax attention, causal in CS, whose weights are there to work with: what most defects start from."""

    def weights(self, query, key, padding):
        logits = hide_padding(query @ key.mT * self.scale, padding.key)
        if self.pattern is Pattern.CS and not self.forgets(query):
            logits = logits.masked_fill(future(query.shape[2]), NEVER)
        return logits.softmax(-1)

    def forgets(self, _query):
        """Whether the causal mask is left out."""
        return False

    def attend(self, query, key, value, padding):
        return self.weights(query, key, padding) @ value

    def reference(self, query, key, value):
        logits = query @ key.mT * self.scale
        if self.pattern is Pattern.CS:
            logits = logits.masked_fill(future(query.shape[1]), NEVER)
        return logits.softmax(-1) @ value


def caught(patterns: str, checks: str, *, long: int = 0) -> Callable[[type], type]:
    """Register the decorated class: all of ``checks``, which name its defect, fail in each of ``patterns``."""

    def add(cls: type) -> type:
        for pattern in patterns.split():
            marks = pytest.mark.slow if long else ()
            identifier = f"{cls.__name__}-{pattern}"
            MUTATIONS.append(pytest.param(cls, pattern, checks.split(), long, id=identifier, marks=marks))
        return cls

    return add


class Call(NamedTuple):
    """A call of ``attend``, and what it computes: weights or output, whichever has the defect."""

    module: Any
    query: Tensor
    key: Tensor
    value: Tensor
    padding: PaddingMasks
    result: Any = None

    @property
    def training(self) -> bool:
        return self.module.training


def defect(of: str, patterns: str, checks: str, *, base: type = Weighted, long: int = 0) -> Callable[..., type]:
    """Register ``base`` with a defect that the decorated function of a :class:`Call` makes.

    It returns the call with other ``inputs``, the defect ``weights`` or ``output`` for those in ``result``, or whether
    the ``mask`` is forgotten; or it adds the ``losses`` of the weights in ``result``.
    """

    def add(function: Callable[[Call], Any]) -> type:
        def attend(self, query, key, value, padding):
            call = Call(self, query, key, value, padding)
            if of == "inputs":
                return base.attend(self, *function(call)[1:5])
            return function(call._replace(result=base.attend(self, query, key, value, padding)))

        def weights(self, query, key, padding):
            result = base.weights(self, query, key, padding)
            return function(Call(self, query, key, None, padding, result))

        def forgets(self, query):
            return function(Call(self, query, None, None, None))

        def add_losses(self, weights, query, key, padding):
            function(Call(self, query, key, None, padding, weights))

        methods = {
            "inputs": {"attend": attend},
            "output": {"attend": attend},
            "weights": {"weights": weights},
            "mask": {"forgets": forgets},
            "losses": {"add_losses": add_losses},
        }
        name = function.__name__.title().replace("_", "")
        return caught(patterns, checks, long=long)(type(name, (base,), methods[of]))

    return add


def failures(cls, pattern, checks=None, *, quick=True, complexity="n^2", long=LONG):
    """Return the details of the checks that failed, without any measurement of time."""
    pattern = Pattern.parse(pattern)
    subject = Subject(cls.__name__, cls, pattern, complexity=complexity, long=(long,))
    chosen = [check for check in select_checks(checks, quick=quick) if not check.is_timed]
    results = list(run_checks(subject, chosen))
    assert results
    return {result.check: result.detail for result in results if not result.passed}
