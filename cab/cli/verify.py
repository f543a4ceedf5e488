"""`cab verify`: run the conformance suite on registered attentions or on a class in a file."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import shutil
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from cab.cli.terminal import print_note
from cab.errors import UserError
from cab.files.disk import check_writable, sanitize_csv_cell
from cab.files.text_table import text_table
from cab.patterns import Pattern

if TYPE_CHECKING:
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
    parser.add_argument(
        "--pattern",
        action="append",
        default=[],
        metavar="P",
        help="NS, CS, NC or CC; repeat the option or separate by commas (default: all supported patterns)",
    )
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
        _list_checks(args.csv)
        return 0
    checks = select_checks(_words(args.checks) or None, quick=args.quick)
    if args.compile:
        checks += [check for check in select_checks(["compile"]) if check not in checks]
    patterns = [Pattern.parse(word) for word in _words(args.pattern)]
    if args.record is not None:
        _check_record(args)
        checks = [check for check in checks if not check.is_timed]
    subjects = list(_subjects(args, patterns))
    if not any(check for subject in subjects for check in applicable(checks, subject)):
        raise UserError("none of these checks applies to these attentions and patterns; see --list-checks")
    if args.record is not None and not args.all:
        subjects = _without_row(subjects, args)
    results = list(_results(subjects, checks, args))
    pairs = groupby(results, lambda result: (result.attention, result.pattern))
    headlines = [headline(of_pair) for _, of_pair in pairs]
    results.sort(key=lambda result: result.passed)  # failures first, each part in the order of causes
    failed = [result for result in results if not result.passed]
    shown = failed if args.record is not None else results
    if args.csv:
        _print_csv(COLUMNS, [(r.attention, r.pattern, r.check, str(r.passed).lower(), r.detail) for r in shown])
    elif shown:
        print("".join(f"{line}\n\n" for line in headlines if line), end="")
        _print_table(shown)
    print_note(f"{len(results)} checks, {len(failed)} failed")
    return 1 if failed else 0


def _check_record(args: argparse.Namespace) -> None:
    """Raise UserError for options that a row does not record, or a file with other columns."""
    if args.checks or args.device != "cpu":
        raise UserError("--record requires all checks on a CPU: remove --checks and --device")
    check_writable(args.record.parent, "--record")
    if args.record.exists():
        from cab.records.verified import COLUMNS, has_columns

        if not has_columns(args.record):
            raise UserError(f"--record: {args.record} is not a table with columns {','.join(COLUMNS)}")


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
    """Yield every attention in every pattern to verify; user errors are raised before the first check runs."""
    from cab.registry.files import entry_of_file
    from cab.registry.registries import ATTENTIONS, is_file
    from cab.verification import subject_of
    from cab.verification.foreign import ForeignModule, subject_class
    from cab.verification.suite import runs_in_float32

    _check_device(args.device)
    for target in args.attentions or [entry.name for entry in ATTENTIONS.load()]:
        attention = subject_class(target) if is_file(target) or ":" in target else target
        entry = ATTENTIONS.get(attention) if isinstance(attention, str) else ATTENTIONS.entry_of(attention)
        is_foreign = not isinstance(attention, str) and issubclass(attention, ForeignModule)
        foreign = attention.patterns if is_foreign else ()  # type: ignore[union-attr]
        if entry is None and not patterns and not foreign:
            raise UserError(f"{target} is not registered: name its pattern with --pattern NS, CS, NC or CC")
        if entry is not None and not args.attentions and not runs_in_float32(entry.cls, args.device):
            print_note(f"{target} is not verified on {args.device}: it does not run in float32 there")
            continue
        claimed = entry.patterns if entry is not None else foreign or tuple(patterns)
        # Without names, --pattern chooses among what each attention claims; with a name it must be claimed.
        chosen = [p for p in patterns if p in claimed] if patterns and not args.attentions else patterns or claimed
        for pattern in chosen:
            subject = subject_of(attention, pattern, options={}, complexity=args.complexity, device=args.device)
            # In every table, a class in a file has the name of the class.
            is_class = entry is not None and is_file(target)
            yield dataclasses.replace(subject, name=entry_of_file(target).label) if is_class else subject


def _results(subjects: Sequence[Subject], checks: Sequence[Check], args: argparse.Namespace) -> Iterator[CheckResult]:
    """Yield the result of every check; a pair that passed all of them on a CPU is recorded immediately."""
    from cab.records.verified import remembered
    from cab.verification import run_checks

    for subject in subjects:
        if not subject.decodes and subject.pattern.is_causal:
            print_note(f"{subject.name} {subject.pattern}: has no init_state and step; decoding is not verified")
        if subject.complexity is None:
            print_note(f"{subject.name} {subject.pattern}: growth is measured but not checked (set --complexity)")
        results = []
        for result in run_checks(subject, checks, fail_fast=args.fail_fast):
            results.append(result)
            yield result
        failed = [result.check for result in results if not result.passed]
        if not args.checks and args.device == "cpu":
            _note(args.record or remembered(), subject, results, quick=args.quick)
        names = f": {', '.join(failed)}" if failed else ""
        print_note(f"{subject.name} {subject.pattern}: {len(results)} checks, {len(failed)} failed{names}")


def _note(record: Path, subject: Subject, results: Sequence[CheckResult], *, quick: bool) -> None:
    """Write the row of a pair, or remove it if a check failed; timing checks do not count."""
    from cab.records.verified import Row, code_of, note, package_of
    from cab.verification.check import CHECKS

    counted = [(CHECKS[result.check].group, result) for result in results if not CHECKS[result.check].is_timed]
    reach: dict[str, int] = {}
    for group, result in counted:
        reach[group] = max(reach.get(group, 0), result.longest)
    row = Row.of_today(
        subject.name,
        str(subject.pattern),
        code_of(subject.cls),
        quick=quick,
        reach=reach,
        package=package_of(subject.cls),
    )
    note(record, row, passed=all(result.passed for _, result in counted))


def _print_csv(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerows(map(sanitize_csv_cell, row) for row in [header, *rows])


def _print_table(results: Sequence[CheckResult]) -> None:
    rows = [(r.attention, r.pattern, r.check, "ok" if r.passed else "FAILED", r.detail) for r in results]
    table = text_table(COLUMNS, rows)
    if sys.stdout.isatty():
        room = max(80, shutil.get_terminal_size((200, 24)).columns)
        table = "\n".join(line[:room] for line in table.splitlines())
    print(table)


def _list_checks(as_csv: bool) -> None:
    from cab.verification.suite import GROUPS, select_checks

    checks = select_checks(GROUPS)
    if as_csv:
        _print_csv(("group", "check", "summary"), [(check.group, check.name, check.summary) for check in checks])
        return
    rows: list[tuple[str, str]] = []
    for group, members in groupby(checks, key=lambda check: check.group):
        rows += [(group, ""), *((f"  {check.name}", check.summary) for check in members)]
    print(text_table((), rows))


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{device}' is not available: {str(error).splitlines()[0]}") from error


def _words(arguments: Sequence[str]) -> list[str]:
    return [word for argument in arguments for word in argument.replace(",", " ").split()]
