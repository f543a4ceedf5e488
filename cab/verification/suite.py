"""Select checks, run them and collect their results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
from torch import nn

from cab.claims import Claims
from cab.errors import UserError, unknown_name
from cab.patterns import Pattern
from cab.registry.registries import ATTENTIONS
from cab.verification import (  # noqa: F401
    causality,
    context,
    contract,
    decoding,
    growth,
    learning,
    lengths,
    numerics,
    packed,
    relations,
    relations_of_inputs,
    training_mode,
    walk,
)
from cab.verification.check import CHECKS, FLOAT32, Check, Worst
from cab.verification.foreign.adapters import ForeignModule
from cab.verification.localize import guilty
from cab.verification.mistakes import check_runs, explain, named
from cab.verification.on_demand import kernels, rollout  # noqa: F401
from cab.verification.side_effects import restored
from cab.verification.subject import WHOLE, Subject

GROUPS = (
    *("determinism", "state", "contract", "batches", "causality", "padding", "lengths", "training_mode", "decoding"),
    *("branching", "packed", "context", "dropout", "numerics", "precision", "learning", "sizes", "layer_position"),
    *("limits", "parameters", "growth", "calls", "compile", "kernels", "rollout"),
)
"""Groups of checks in the order of causes: the process, inputs, batches, causality, padding, lengths, then the rest.

A defect in one group often fails checks of later groups: a causal leak also fails decoding.
"""

ON_DEMAND = ("compile", "kernels", "rollout")
"""Groups that run only on request."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        detail: measured quantity, worst value, limit and location.
        longest: number of tokens in the longest sequence tested.
        finding: the defect in one clause, such as "output 102 depends on token 103", or an exception.
        error: cause of an exception; equal for all checks that one mistake makes raise.
        guilty: submodule in which the failure starts, and its place in it, if it is found.
        seconds: run time of the check.
    """

    attention: str
    pattern: str
    check: str
    passed: bool
    detail: str
    longest: int = 0
    finding: str = ""
    error: str = ""
    guilty: str = ""
    seconds: float = field(default=0.0, compare=False)


def verify_attention(
    attention: str | type[nn.Module],
    pattern: Pattern | str,
    *,
    checks: Iterable[str] | None = None,
    quick: bool = False,
    options: Mapping[str, Any] | None = None,
    complexity: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    fail_fast: bool = False,
) -> list[CheckResult]:
    """Run the conformance suite on one attention in one pattern.

    Args:
        attention: a registered name, or a module class that follows the contract (docs/reference/python.md). A class
            that is neither registered nor a :class:`cab.Attention` only needs ``forward``; its decoding is checked
            if it has ``init_state`` and ``step``.
        pattern: NS, CS, NC or CC; a registered attention has to support it.
        checks: names of checks or check groups (default: all except those on demand).
        quick: run without slow checks and long sequences, which takes seconds.
        options: constructor options (default: those of the class).
        complexity: declared complexity of an unregistered class, as in :func:`cab.register_attention`.
        device: device on which the modules run.
        seed: number of the sample of weights and inputs.
        fail_fast: stop after the first check that fails.

    Raises:
        ValueError: for an unknown attention, pattern, check or option, or a class that cannot be built.
    """
    chosen = select_checks(checks, quick=quick)
    subject = subject_of(attention, pattern, options=options or {}, complexity=complexity, device=device)
    return list(run_checks(replace(subject, seed=seed), chosen, fail_fast=fail_fast))


def run_checks(
    subject: Subject,
    checks: Iterable[Check],
    *,
    fail_fast: bool = False,
    progress: Callable[[list[Check]], Iterable[Check]] = list,
) -> Iterator[CheckResult]:
    """Yield the results of the ``checks`` that apply; random numbers and settings of torch are restored after each.

    A check fails if the subject raises while the check runs, or while it is determined whether the check applies.

    Raises:
        UserError: the class cannot be built, or called once.
    """
    with restored():
        check_runs(subject)
        chosen = list(applicable(checks, subject))
    failed: set[str] = set()
    for check in progress(chosen):
        with restored():
            torch.set_num_threads(1)  # fastest for small tensors, and CPU times are comparable
            torch.manual_seed(0)
            result = run(check, subject, is_consequence=bool(failed - {check.group}))
        yield result
        failed |= set() if result.passed else {check.group}
        if fail_fast and not result.passed:
            return


def applicable(checks: Iterable[Check], subject: Subject) -> Iterator[Check]:
    """Yield the checks that apply, and those for which the subject raises an exception, which they report."""
    for check in checks:
        try:
            applies = check.applies(subject)
        except (Exception, SystemExit):
            applies = True
        if applies:
            yield check


def run(check: Check, subject: Subject, *, is_consequence: bool = False) -> CheckResult:
    """Run one check; an exception raised by the attention, or its attempt to exit, counts as failed.

    A declaration is suggested unless the failure may be the consequence of a failure in an earlier group.
    """
    fresh, start = subject.for_check(long=check.runs_long), perf_counter()
    passed, finding, error, culprit = False, "", "", ""
    try:
        worst = check.measure(fresh)
        passed, detail = worst.passed, worst.detail
        if not passed:
            finding = worst.finding
            if not is_consequence and may_be_declared(worst, fresh):
                detail += f"; if intended, declare `{worst.declared_in}`"
            culprit = guilty(fresh, check.group)
            detail += f"; first in {culprit}" if culprit else ""
    except (Exception, SystemExit) as raised:
        at = f" at n={fresh.drawn[-1]}" if fresh.drawn else ""
        text = explain(raised, subject)
        detail, error, finding = f"raised{at} {text}", re.sub(r"\d+", "", text), f"raised{at} {named(raised)}"
        is_of_lengths = check.group in ("determinism", "lengths")  # the first calls of other lengths
        if at and is_of_lengths and not subject.keeps_whole_contract and fresh.drawn[-1] % WHOLE:
            detail += "; if only multiples of some length are supported, declare `length_multiple`"
    detail += f"; skipped: {', '.join(fresh.skipped)}" if fresh.skipped else ""
    longest = max(fresh.drawn, default=0)
    detail += f"; longest n={longest}" if longest else ""
    seconds = perf_counter() - start
    name, pattern = subject.name, str(subject.pattern)
    return CheckResult(name, pattern, check.name, passed, detail, longest, finding, error, culprit, seconds)


def may_be_declared(worst: Worst, subject: Subject) -> bool:
    """Return whether a failure can be intended: a declaration must not hide a defect.

    The whole contract includes all padding, and decoding is approximate only in a state of lower precision.
    """
    if worst.declared_in == "padding_layouts":
        return not subject.keeps_whole_contract
    if worst.declared_in == "decode_tolerance":
        return subject.decoding_epsilon > FLOAT32 and worst.value < 8.0 * subject.decoding_epsilon
    return bool(worst.declared_in)


def headline(results: Iterable[CheckResult]) -> str:
    """Return the defect that explains the failures of one subject, the first one; empty if all checks passed."""
    failed = [result for result in results if not result.passed]
    if not failed:
        return ""
    cause = failed[0]
    is_leak = cause.finding and not cause.error and CHECKS[cause.check].group == "causality"
    leak = "causal leak: " if is_leak else ""
    same = sum(result.error == cause.error for result in failed[1:]) if cause.error else 0
    defect = f"{leak}{cause.finding or cause.detail.partition('; longest n=')[0]}"
    defect += f", first in {cause.guilty}" if cause.guilty and cause.guilty not in defect else ""
    text = f"{cause.attention} {cause.pattern}: {defect} ({cause.check})"
    text += f"; {same} further checks raised the same error" if same else ""
    others = len(failed) - 1 - same
    return text + (f"; {others} other failed checks may be consequences" if others else "")


def select_checks(names: Iterable[str] | None = None, *, quick: bool = False) -> list[Check]:
    """Return checks by name and group, in the order of the suite (default: all except :data:`ON_DEMAND`).

    The ``quick`` ones are fast, and have no long sequences.

    Raises:
        ValueError: for an unknown name.
    """
    names = set(GROUPS) - set(ON_DEMAND) if names is None else set(names)
    for name in sorted(names):
        if name not in CHECKS and name not in GROUPS:
            raise unknown_name("check", name, [*CHECKS, *GROUPS])
    chosen = [check for check in CHECKS.values() if check.name in names or check.group in names]
    chosen.sort(key=lambda check: GROUPS.index(check.group))
    return [replace(check, runs_long=False) for check in chosen if check.is_quick] if quick else chosen


def subject_of(
    attention: str | type[nn.Module],
    pattern: Pattern | str,
    *,
    options: Mapping[str, Any],
    complexity: str | None = None,
    device: str = "cpu",
) -> Subject:
    """Return the subject of a verification.

    Raises:
        UserError: the attention does not support the pattern, an option, or float32 on the device.
    """
    pattern = Pattern.parse(pattern)
    entry = ATTENTIONS.get(attention) if isinstance(attention, str) else ATTENTIONS.entry_of(attention)
    if entry is None:
        assert not isinstance(attention, str)
        if issubclass(attention, ForeignModule):
            attention, options = attention.bound(pattern, options)
        return Subject(attention.__name__, attention, pattern, options, complexity, device)
    if pattern not in entry.patterns:
        supported = ", ".join(map(str, entry.patterns))
        raise UserError(f"attention '{entry.name}' does not support pattern {pattern} (supported: {supported})")
    entry.check_options(options, "attention")
    if not runs_in_float32(entry.cls, device):
        raise UserError(
            f"attention '{entry.name}' does not support float32 on {device}, which the checks use; verify it with "
            "`--device cpu`, where it computes the same function"
        )
    return Subject(entry.name, entry.cls, pattern, options, complexity or entry.complexity or None, device)


def runs_in_float32(cls: type[nn.Module], device: str) -> bool:
    """Return whether ``cls`` runs in float32, the dtype of the checks, on ``device``."""
    return device.partition(":")[0] in getattr(cls, "claims", Claims()).float32_devices
