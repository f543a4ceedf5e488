"""Choose checks, run them, and turn what they measured into results."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from cab.attention import Attention
from cab.errors import UserError, unknown_name
from cab.patterns import Pattern
from cab.registry.registries import ATTENTIONS
from cab.verification.check import CHECKS, Check
from cab.verification.subject import Subject, takes

GROUPS = (
    "contract",
    "causality",
    "context",
    "decoding",
    "padding",
    "batches",
    "lengths",
    "determinism",
    "state",
    "dropout",
    "numerics",
    "precision",
    "learning",
    "layer_position",
    "limits",
    "parameters",
    "growth",
    "compile",
)
"""A module of this package each; importing it adds its checks, in this order."""

for group in GROUPS:
    importlib.import_module(f"cab.verification.{group}")

ON_DEMAND = ("compile",)
"""Groups that run only when they are asked for."""


@dataclass(frozen=True)
class CheckResult:
    """What one check found; ``detail`` holds the worst value measured, where, and what was expected."""

    attention: str
    pattern: str
    check: str
    passed: bool
    detail: str
    longest: int = 0
    """Tokens of the longest sequence it looked at."""


def verify_attention(
    attention: str | type[nn.Module],
    pattern: Pattern | str,
    *,
    checks: Iterable[str] | None = None,
    quick: bool = False,
    options: Mapping[str, Any] | None = None,
    complexity: str | None = None,
    device: str = "cpu",
) -> list[CheckResult]:
    """Run the conformance suite on one attention in one pattern.

    Args:
        attention: a registered name, or any module class that follows the contract (docs/reference/python.md). A class
            that is neither registered nor a :class:`cab.Attention` is held to ``forward``, and to decoding when
            it has ``init_state`` and ``step``.
        pattern: NS, CS, NC or CC; one that a registered attention claims.
        checks: names of checks or of groups of checks; all but those of group ``compile`` when not given.
        quick: in seconds: without the slow checks, and without long sequences in the others.
        options: options of the constructor; its defaults when not given.
        complexity: declared growth of a class that is not registered, as in :func:`cab.register_attention`.
        device: where the modules run.

    Raises:
        ValueError: an unknown attention, pattern, check or option, or a class that cannot be built.
    """
    chosen = select_checks(checks, quick=quick)
    subject = subject_of(attention, pattern, options=options or {}, complexity=complexity, device=device)
    return list(run_checks(subject, chosen))


def run_checks(subject: Subject, checks: Iterable[Check]) -> Iterator[CheckResult]:
    """The results of those ``checks`` that apply to ``subject``, one by one. The random state is left as it was."""
    gpus = range(torch.cuda.device_count())
    with torch.random.fork_rng(gpus):
        build(subject)
        applicable = [check for check in checks if check.applies(subject)]
    for check in applicable:
        with torch.random.fork_rng(gpus), one_thread():
            torch.manual_seed(0)
            yield run(check, subject)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread: fastest on small tensors, and the processor time of a call is its own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run(check: Check, subject: Subject) -> CheckResult:
    """What a check found, and at what length; an attention that raises has not passed."""
    subject = replace(subject, long=subject.long if check.runs_long else (), drawn=set())
    try:
        worst = check.measure(subject)
        passed, detail = worst.passed, worst.detail
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        passed, detail = False, f"raised {type(error).__name__}: {lines[0]}; no error expected"
    longest = max(subject.drawn, default=0)
    looked = f"; n up to {longest}" if longest else ""
    return CheckResult(subject.name, str(subject.pattern), check.name, passed, detail + looked, longest)


def select_checks(
    names: Iterable[str] | None = None, *, quick: bool = False, is_timed: bool | None = None
) -> list[Check]:
    """Checks by their names and groups, in the order of the suite; all but those of group ``compile`` by default.

    Args:
        names: names of checks or of groups of checks.
        quick: those that take little, without their long sequences.
        is_timed: only those that depend on the speed of the machine (True), or that do not (False).

    Raises:
        ValueError: an unknown name.
    """
    names = set(GROUPS) - set(ON_DEMAND) if names is None else set(names)
    for name in sorted(names):
        if name not in CHECKS and name not in GROUPS:
            raise unknown_name("check", name, [*CHECKS, *GROUPS])
    chosen = [check for check in CHECKS.values() if check.name in names or check.group in names]
    if is_timed is not None:
        chosen = [check for check in chosen if check.is_timed is is_timed]
    return [replace(check, runs_long=False) for check in chosen if check.is_quick] if quick else chosen


def subject_of(
    attention: str | type[nn.Module],
    pattern: Pattern | str,
    *,
    options: Mapping[str, Any],
    complexity: str | None = None,
    device: str = "cpu",
) -> Subject:
    """What to verify; UserError when the pattern is not claimed, an option does not exist, or not in float32 there."""
    pattern = Pattern.parse(pattern)
    entry = ATTENTIONS.get(attention) if isinstance(attention, str) else ATTENTIONS.entry_of(attention)
    if entry is None:
        assert not isinstance(attention, str)
        return Subject(attention.__name__, attention, pattern, options, complexity, device=device)
    if pattern not in entry.patterns:
        raise UserError(f"attention '{entry.name}' does not claim pattern {pattern}; it has {_join(entry.patterns)}")
    entry.check_options(options, "attention")
    if not runs_in_float32(entry.cls, device):
        raise UserError(
            f"attention '{entry.name}' does not run in float32 on {device}, as the checks do: verify it on a CPU, "
            "where it computes the same"
        )
    return Subject(entry.name, entry.cls, pattern, options, complexity or entry.complexity or None, True, device)


def runs_in_float32(cls: type[nn.Module], device: str) -> bool:
    """Whether the checks, which are in float32, can run ``cls`` on ``device``."""
    return device.partition(":")[0] in getattr(cls, "float32_devices", Attention.float32_devices)


def build(subject: Subject) -> None:
    """UserError when the class cannot be built at all: then there is nothing to verify."""
    try:
        subject.build()
    except Exception as error:
        filled = [name for name in ("pattern", "embed_dim", "num_heads", "dropout") if takes(subject.cls, name)]
        raise UserError(
            f"cannot build {subject.name} for pattern {subject.pattern} from {_join(filled) or 'no arguments'}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _join(words: Iterable[object]) -> str:
    return " ".join(map(str, words))
