"""The conformance suite as tests of pytest: one item per check, for the test suite of any package.

    from cab.testing import checks
    from mine import Mine

    test_mine = checks(Mine, patterns="NS CS")

Run ``pytest`` on the file; ``-k CS-padded_left`` selects an item.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from torch import nn

from cab.errors import UserError, unknown_name
from cab.patterns import Pattern
from cab.registry.registries import ATTENTIONS
from cab.verification import run_checks, select_checks, subject_of
from cab.verification.check import CHECKS
from cab.verification.foreign import adapter_of, subject_class
from cab.verification.subject import Subject


def checks(
    attention: str | type[nn.Module] | Callable[..., Any],
    *,
    patterns: str,
    expected: Mapping[str, str] | None = None,
    quick: bool = True,
    options: Mapping[str, Any] | None = None,
    complexity: str | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> Callable[..., None]:
    """Return a test function with one item per pattern and check; a check is computed when its item runs.

    Args:
        attention: a registered name, a name that ``cab verify`` accepts, a module class, or a function that returns a
            module for some of the arguments ``pattern``, ``embed_dim``, ``num_heads`` and ``dropout``.
        patterns: patterns separated by spaces.
        expected: reasons for checks that fail, by name of the check. An exception is never expected, and a check that
            passes unexpectedly is a failure.
        quick: run without slow checks and long sequences.
        options: constructor options of a class.
        complexity: declared complexity of a class that is not registered.
        device: device on which the modules run.
        seed: number of the sample of weights and inputs.

    Raises:
        UserError: for a check in ``expected`` that does not exist.
    """
    reasons = dict(expected or {})
    for name in reasons:
        if name not in CHECKS:
            raise unknown_name("check", name, CHECKS)
    chosen = {check.name: check for check in select_checks(quick=quick)}

    @functools.cache
    def subject(pattern: str) -> Subject:
        target = _target(attention)
        made = subject_of(target, pattern, options=options or {}, complexity=complexity, device=device)
        return dataclasses.replace(made, seed=seed)

    cannot_run: set[str] = set()
    raised: dict[tuple[str, str], str] = {}

    @pytest.mark.parametrize("check", chosen)
    @pytest.mark.parametrize("pattern", [str(Pattern.parse(pattern)) for pattern in patterns.split()])
    def test(pattern: str, check: str) -> None:
        if pattern in cannot_run:
            pytest.skip(f"cannot run in pattern {pattern}; see the first failed item")
        results, mistake = [], ""
        try:
            results = list(run_checks(subject(pattern), [chosen[check]]))
        except UserError as error:
            mistake = str(error)
        if mistake:
            cannot_run.add(pattern)
            pytest.fail(mistake, pytrace=False)
        if not results:
            pytest.skip(f"does not apply to {subject(pattern).name} in pattern {pattern}")
        [result] = results
        first = raised.setdefault((pattern, result.error), check) if result.error else check
        if first != check:
            pytest.fail(f"{result.finding} (the error of {first})", pytrace=False)
        if not result.passed and check in reasons and not result.error:
            pytest.xfail(reasons[check])
        if not result.passed:
            finding = f"{result.finding}: " if result.finding not in result.detail else ""
            pytest.fail(f"{result.attention} {pattern}: {finding}{result.detail} ({check})", pytrace=False)
        if check in reasons:
            pytest.fail(f"{check} passes in {pattern}; remove it from `expected` ({reasons[check]})", pytrace=False)

    return test


def patterns_of(name: str) -> str:
    """Return the patterns of a name that ``cab verify`` accepts, separated by spaces."""
    target = _target(name)
    entry = ATTENTIONS.get(target) if isinstance(target, str) else ATTENTIONS.entry_of(target)
    return " ".join(map(str, getattr(target, "patterns", Pattern) if entry is None else entry.patterns))


def _target(attention: str | type[nn.Module] | Callable[..., Any]) -> str | type[nn.Module]:
    """Return what the suite verifies: a registered name or a class."""
    if isinstance(attention, str):
        return subject_class(attention) if ":" in attention else attention
    return adapter_of(attention, getattr(attention, "__name__", "factory"))
