"""Select checks, run them and collect their results."""

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
"""Modules of this package; importing one registers its checks, in this order."""

for group in GROUPS:
    importlib.import_module(f"cab.verification.{group}")

ON_DEMAND = ("compile",)
"""Groups that run only on request."""


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        attention: name of the attention.
        pattern: NS, CS, NC or CC.
        check: name of the check.
        passed: whether the worst measurement is within its limit.
        detail: measured quantity, worst value, limit and location.
    """

    attention: str
    pattern: str
    check: str
    passed: bool
    detail: str
    longest: int = 0
    """Number of tokens in the longest sequence tested."""


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
        attention: a registered name, or a module class that follows the contract (docs/reference/python.md). A class
            that is neither registered nor a :class:`cab.Attention` only needs ``forward``; its decoding is checked
            if it has ``init_state`` and ``step``.
        pattern: NS, CS, NC or CC; a registered attention has to support it.
        checks: names of checks or check groups (default: all except group ``compile``).
        quick: run without slow checks and long sequences, which takes seconds.
        options: constructor options (default: those of the class).
        complexity: declared complexity of an unregistered class, as in :func:`cab.register_attention`.
        device: device on which the modules run.

    Raises:
        ValueError: for an unknown attention, pattern, check or option, or a class that cannot be built.
    """
    chosen = select_checks(checks, quick=quick)
    subject = subject_of(attention, pattern, options=options or {}, complexity=complexity, device=device)
    return list(run_checks(subject, chosen))


def run_checks(subject: Subject, checks: Iterable[Check]) -> Iterator[CheckResult]:
    """Yield the results of the ``checks`` that apply to ``subject``; restores the random state."""
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
    """Limit torch to one thread, which is fastest for small tensors and makes CPU times comparable."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def run(check: Check, subject: Subject) -> CheckResult:
    """Run one check; an exception raised by the attention counts as failed."""
    subject = replace(subject, long=subject.long if check.runs_long else (), drawn=set())
    try:
        worst = check.measure(subject)
        passed, detail = worst.passed, worst.detail
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        passed, detail = False, f"raised {type(error).__name__}: {lines[0]} "
    longest = max(subject.drawn, default=0)
    looked = f"; longest n={longest}" if longest else ""
    return CheckResult(subject.name, str(subject.pattern), check.name, passed, detail + looked, longest)


def select_checks(
    names: Iterable[str] | None = None, *, quick: bool = False, is_timed: bool | None = None
) -> list[Check]:
    """Return checks by name and group, in the order of the suite (default: all except group ``compile``).

    Args:
        names: names of checks or check groups.
        quick: only fast checks, without long sequences.
        is_timed: only checks that depend on the speed of the machine (True), or only the others (False).

    Raises:
        ValueError: for an unknown name.
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
    """Return the subject of a verification.

    Raises:
        UserError: the attention does not support the pattern, an option, or float32 on the device.
    """
    pattern = Pattern.parse(pattern)
    entry = ATTENTIONS.get(attention) if isinstance(attention, str) else ATTENTIONS.entry_of(attention)
    if entry is None:
        assert not isinstance(attention, str)
        return Subject(attention.__name__, attention, pattern, options, complexity, device=device)
    if pattern not in entry.patterns:
        supported = ", ".join(map(str, entry.patterns))
        raise UserError(f"attention '{entry.name}' does not support pattern {pattern} (supported: {supported})")
    entry.check_options(options, "attention")
    if not runs_in_float32(entry.cls, device):
        raise UserError(
            f"attention '{entry.name}' does not support float32 on {device}, which the checks use; verify it with "
            "`--device cpu`, where it computes the same function"
        )
    return Subject(entry.name, entry.cls, pattern, options, complexity or entry.complexity or None, True, device)


def runs_in_float32(cls: type[nn.Module], device: str) -> bool:
    """Return whether ``cls`` runs in float32, the dtype of the checks, on ``device``."""
    return device.partition(":")[0] in getattr(cls, "float32_devices", Attention.float32_devices)


def build(subject: Subject) -> None:
    """Build the subject once; raises UserError if its class cannot be built."""
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
