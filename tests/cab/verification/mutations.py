"""Mutations: attentions with one real defect each, and the checks that must fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cab import Attention, Pattern
from cab.verification import run_checks, select_checks
from cab.verification.subject import LONG, Subject

MUTATIONS = []
"""Class, pattern, failing checks and whether short sequences suffice, as parameters of a test."""


class Method(Attention):
    """An attention whose further parameters and buffers are made by ``set_up``."""

    def __init__(self, *, pattern, embed_dim, num_heads, dropout=0.0):
        super().__init__(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        self.set_up()

    def set_up(self):
        pass


def caught(patterns: str, checks: str, *, quick: bool = True) -> Callable[[type], type]:
    """Register the decorated class: all of ``checks``, which name its defect, fail in each of ``patterns``."""

    def add(cls: type) -> type:
        for pattern in patterns.split():
            marks = () if quick else pytest.mark.slow
            identifier = f"{cls.__name__}-{pattern}"
            MUTATIONS.append(pytest.param(cls, pattern, checks.split(), quick, id=identifier, marks=marks))
        return cls

    return add


def failures(cls, pattern, checks=None, *, quick=True, complexity="n^2", is_registered=False, long=LONG):
    """Return the details of the checks that failed, without any measurement of time."""
    subject = Subject(
        cls.__name__,
        cls,
        Pattern.parse(pattern),
        complexity=complexity,
        is_registered=is_registered,
        long=(long,),
    )
    results = list(run_checks(subject, select_checks(checks, quick=quick, is_timed=False)))
    assert results
    return {result.check: result.detail for result in results if not result.passed}
