"""`cab verify`: run the conformance suite on registered attentions or on a class in a file."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.cli.arguments import add_pattern
from cab.cli.terminal import print_note
from cab.errors import UserError
from cab.files.disk import check_writable
from cab.files.text_table import print_rows, text_table

if TYPE_CHECKING:
    from cab.patterns import Pattern
    from cab.verification.check import Check
    from cab.verification.subject import Subject
    from cab.verification.suite import CheckResult

COLUMNS = ("attention", "pattern", "check", "passed", "detail")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run the conformance suite on attentions. Exit status: 0 all checks passed, 1 a check failed, 2 user error, "
        "3 internal error."
    )
    parser.add_argument(
        "attentions",
        nargs="*",
        metavar="NAME",
        help="registered names, FILE.py:Class, FILE.py:function, package.module:name or hf:TYPE, such as hf:mamba2 "
        "(default: all registered attentions)",
    )
    add_pattern(parser, "NS, CS, NC or CC (default: all supported patterns)")
    parser.add_argument(
        "--checks", action="append", default=[], metavar="CHECK", help="checks or groups of checks (see --list-checks)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="skip slow checks, long sequences and timing (about 10 s per pattern)"
    )
    parser.add_argument(
        "--fail-fast", action="store_true", help="stop each attention-pattern pair after its first failed check"
    )
    parser.add_argument("--compile", action="store_true", help="also check for graph breaks under torch.compile (slow)")
    parser.add_argument(
        "--complexity",
        choices=("1", "n", "n log n", "n sqrt n", "n^2"),
        help="expected growth in time and memory of a class that is not registered",
    )
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument(
        "--record",
        type=Path,
        metavar="CSV",
        help="verify every attention-pattern pair without a current row in this file (same code, checks and torch "
        "version) and write a row as soon as a pair passes; timing checks are skipped",
    )
    parser.add_argument(
        "--all", action="store_true", help="with --record: also re-verify pairs that have a current row"
    )
    parser.add_argument("--csv", action="store_true", help=f"print CSV: {','.join(COLUMNS)}")
    parser.add_argument("--list-checks", action="store_true", help="list the checks and exit")


def run(args: argparse.Namespace) -> int:
    from cab.verification import select_checks
    from cab.verification.suite import applicable, headline

    if args.list_checks:
        _list_checks(as_csv=args.csv)
        return 0
    checks = select_checks(_words(args.checks) or None, quick=args.quick)
    if args.compile:
        checks += [check for check in select_checks(["compile"]) if check not in checks]
    if args.record is not None:
        _check_record(args)
        checks = [check for check in checks if not check.is_timed]
    subjects = list(_subjects(args, args.pattern))
    if not any(True for subject in subjects for _ in applicable(checks, subject)):
        raise UserError("none of these checks applies to these attentions and patterns; see --list-checks")
    if args.record is not None and not args.all:
        subjects = _without_row(subjects, args)
    results = list(_results(subjects, checks, args))
    headlines = [headline(of_pair) for _, of_pair in groupby(results, lambda r: (r.attention, r.pattern))]
    results.sort(key=lambda result: result.passed)  # failures first, each part in the order of causes
    failed = [result for result in results if not result.passed]
    shown = failed if args.record is not None else results
    words = {True: "true", False: "false"} if args.csv else {True: "ok", False: "FAILED"}
    rows = [(r.attention, r.pattern, r.check, words[r.passed], r.detail) for r in shown]
    if shown and not args.csv:
        print("".join(f"{line}\n\n" for line in headlines if line), end="")
    if shown or args.csv:
        print_rows([COLUMNS, *rows], as_csv=args.csv)
    print_note(f"{len(results)} checks, {len(failed)} failed")
    return 1 if failed else 0


def _words(arguments: Sequence[str]) -> list[str]:
    return [word for argument in arguments for word in argument.replace(",", " ").split()]


def _list_checks(*, as_csv: bool) -> None:
    from cab.verification.suite import GROUPS, select_checks

    checks = select_checks(GROUPS)
    if as_csv:
        rows = [(check.group, check.name, check.summary) for check in checks]
        print_rows([("group", "check", "summary"), *rows], as_csv=True)
        return
    lines: list[tuple[str, str]] = []
    for group, members in groupby(checks, key=lambda check: check.group):
        lines += [(group, ""), *((f"  {check.name}", check.summary) for check in members)]
    print(text_table((), lines))


def _check_record(args: argparse.Namespace) -> None:
    """Raise UserError for options that a row does not record, or a file with other columns."""
    from cab.records import verified

    if args.checks or args.device != "cpu":
        raise UserError("--record requires all checks on a CPU: remove --checks and --device")
    check_writable(args.record.parent, "--record")
    if args.record.exists() and not verified.has_columns(args.record):
        raise UserError(f"--record: {args.record} is not a table with columns {','.join(verified.COLUMNS)}")


def _without_row(subjects: Sequence[Subject], args: argparse.Namespace) -> list[Subject]:
    """Return the subjects whose row is missing, or written by other code, checks or torch."""
    from cab.records.verified import code_of, package_of, read_rows

    rows = {(row.attention, row.pattern): row for row in read_rows(args.record)}
    pending = []
    for subject in subjects:
        row = rows.get((subject.name, str(subject.pattern)))
        if row is None or not row.holds(code_of(subject.cls), quick=args.quick, package=package_of(subject.cls)):
            pending.append(subject)
    print_note(f"{len(subjects) - len(pending)} are already verified, {len(pending)} to verify")
    return pending


def _subjects(args: argparse.Namespace, patterns: Sequence[Pattern]) -> Iterator[Subject]:
    """Yield every attention in every pattern to verify; user errors are raised before the first check runs.

    Without names, ``--pattern`` chooses among the patterns of each attention; with a name, they must be supported.
    """
    from cab.registry.registries import ATTENTIONS
    from cab.verification.suite import runs_in_float32, subject_of

    _check_device(args.device)
    options: dict[str, Any] = {"options": {}, "complexity": args.complexity, "device": args.device}
    for entry in () if args.attentions else ATTENTIONS.load():
        if runs_in_float32(entry.cls, args.device):
            for pattern in entry.patterns:
                if pattern in (patterns or entry.patterns):
                    yield subject_of(entry.name, pattern, **options)
        else:
            print_note(f"{entry.name} is not verified on {args.device}: it does not run in float32 there")
    for target in args.attentions:
        attention, claimed, name = _target(target)
        if not patterns and not claimed:
            raise UserError(f"{target} is not registered: name its pattern with --pattern NS, CS, NC or CC")
        for pattern in patterns or claimed:
            subject = subject_of(attention, pattern, **options)
            yield dataclasses.replace(subject, name=name) if name else subject


def _target(target: str) -> tuple[str | type, Sequence[Pattern], str]:
    """Return what a name means: an attention, its patterns, and the name of a registered class in a file."""
    from cab.registry.files import entry_of_file
    from cab.registry.registries import ATTENTIONS, is_file
    from cab.verification.foreign import ForeignModule, subject_class

    if not is_file(target) and ":" not in target:
        return target, ATTENTIONS.get(target).patterns, ""
    cls = subject_class(target)
    entry = ATTENTIONS.entry_of(cls)
    if entry is not None:  # in every table, a class in a file has the name of the class
        return cls, entry.patterns, entry_of_file(target).label if is_file(target) else ""
    return cls, cls.patterns if issubclass(cls, ForeignModule) else (), ""


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{device}' is not available: {str(error).splitlines()[0]}") from error


def _results(subjects: Sequence[Subject], checks: Sequence[Check], args: argparse.Namespace) -> Iterator[CheckResult]:
    """Yield the result of every check; a pair that passed all of them on a CPU is recorded immediately."""
    from cab.records.verified import remembered
    from cab.verification import run_checks

    for subject in subjects:
        title = f"{subject.name} {subject.pattern}"
        if not subject.decodes and subject.pattern.is_causal:
            print_note(f"{title}: has no init_state and step; decoding is not verified")
        if subject.complexity is None:
            print_note(f"{title}: growth is measured but not checked (set --complexity)")
        results = []
        for result in run_checks(subject, checks, fail_fast=args.fail_fast):
            results.append(result)
            yield result
        if not args.checks and args.device == "cpu":
            _note(args.record or remembered(), subject, results, quick=args.quick)
        failed = [result.check for result in results if not result.passed]
        names = f": {', '.join(failed)}" if failed else ""
        print_note(f"{title}: {len(results)} checks, {len(failed)} failed{names}")


def _note(record: Path, subject: Subject, results: Sequence[CheckResult], *, quick: bool) -> None:
    """Write the row of a pair, or remove it if a check failed; timing checks do not count."""
    from cab.records.verified import Row, code_of, note, package_of
    from cab.verification.check import CHECKS

    counted = [result for result in results if not CHECKS[result.check].is_timed]
    reach: dict[str, int] = {}
    for result in counted:
        group = CHECKS[result.check].group
        reach[group] = max(reach.get(group, 0), result.longest)
    code, package = code_of(subject.cls), package_of(subject.cls)
    row = Row.of_today(subject.name, str(subject.pattern), code, quick=quick, reach=reach, package=package)
    note(record, row, passed=all(result.passed for result in counted))
