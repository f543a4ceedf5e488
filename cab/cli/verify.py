"""`cab verify`: run the conformance suite on registered attentions or on a class in a file."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from xml.etree import ElementTree

from tqdm import tqdm

from cab.cli.arguments import add_pattern
from cab.cli.terminal import print_note
from cab.errors import UserError, first_line
from cab.files.disk import check_writable, sanitize_text
from cab.files.text_table import counted, print_rows
from cab.patterns import Pattern
from cab.records import verified
from cab.registry.names import is_file, is_stack
from cab.registry.program import code_of
from cab.registry.registries import ATTENTIONS
from cab.registry.specs import by_part
from cab.registry.stacks import COMPLEXITIES, StackEntry

if TYPE_CHECKING:
    from cab.verification.check import Check
    from cab.verification.subject import Subject
    from cab.verification.suite import CheckResult

RESULT_COLUMNS = ("attention", "pattern", "check", "passed", "detail")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run the conformance suite on attentions. Exit status: 0 all checks passed, 1 a check failed, 2 user error, "
        "3 internal error."
    )
    parser.add_argument(
        "attentions",
        nargs="*",
        metavar="NAME",
        help="registered names, FILE.py:Class, FILE.py:function, package.module:name or hf:TYPE, such as hf:mamba2; "
        "and options, such as positions=rope, or gla.short_convolution=4 in a stack",
    )
    add_pattern(parser, "NS, CS, NC or CC (default: all supported patterns)")
    parser.add_argument(
        "--checks",
        action="append",
        default=[],
        metavar="C[,C]",
        help="checks or groups of checks, separated by spaces or commas (see --list-checks)",
    )
    flag = partial(parser.add_argument, action="store_true")
    flag("--quick", help="skip slow checks, long sequences and timing (about 10 s per pattern)")
    flag("--fail-fast", help="stop each attention-pattern pair after its first failed check")
    flag("--compile", help="also check graph breaks and values under torch.compile (slow)")
    parser.add_argument(
        "--complexity",
        choices=COMPLEXITIES,
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
    flag("--all", help="with --record: also re-verify pairs that have a current row")
    parser.add_argument("--seed", type=int, default=0, help="number of the sample of weights and inputs (default: 0)")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write the results as JUnit XML")
    parser.add_argument(
        "--vectors",
        type=Path,
        metavar="JSON",
        help="manifest of `cab export`: name the first vector of PORT.safetensors that differs, and the missing ones",
    )
    flag("-v", "--verbose", help="print one row per check")
    flag("--csv", help=f"print CSV: {','.join(RESULT_COLUMNS)}")
    flag("--list-checks", help="list the checks and exit")


def run(args: argparse.Namespace) -> int:
    if args.junit is None:
        return _run(args)
    check_writable(args.junit.parent, "--junit")
    args.junit.unlink(missing_ok=True)  # the file of an earlier run
    try:
        return _run(args)
    except Exception as error:
        _write_junit(args.junit, [], error=first_line(error))
        raise


def _run(args: argparse.Namespace) -> int:
    from cab.verification import select_checks

    if args.list_checks:
        _list_checks(as_csv=args.csv)
        return 0
    if args.vectors is not None:
        return _compare_vectors(args)
    words = _read_lists(args)
    checks = select_checks(words or None, quick=args.quick)
    if args.compile:
        checks += [check for check in select_checks(["compile"]) if check not in checks]
    if args.record is not None:
        _check_record(args)
        checks = [check for check in checks if not check.is_timed]
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # shows the line of a module that crashes the process
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # the output of modules does not belong to the table
        return _verify(checks, args, out)


def _read_lists(args: argparse.Namespace) -> list[str]:
    """Return the named checks; argparse reads b of ``--checks a b``, and CS of ``--pattern NS CS``, as an attention."""
    from cab.verification.check import CHECKS
    from cab.verification.suite import GROUPS

    words = " ".join(args.checks).replace(",", " ").split()
    words += [name for name in args.attentions if words and name in {*CHECKS, *GROUPS} and name not in ATTENTIONS]
    patterns = [name for name in args.attentions if args.pattern and name in Pattern.__members__]
    args.pattern = [*args.pattern, *map(Pattern.parse, patterns)]
    args.attentions = [name for name in args.attentions if name not in (*words, *patterns)]
    return words


def _verify(checks: list[Check], args: argparse.Namespace, out: TextIO) -> int:
    """Run the checks on every subject, print them to ``out`` and return the exit status."""
    from cab.verification.side_effects import SETTINGS, changes_since, read_settings, restored
    from cab.verification.suite import applicable, headline

    before = read_settings(SETTINGS)
    with restored(SETTINGS):  # what packages add to the process when they are imported stays
        subjects = list(_subjects(args, args.pattern))
        for change in changes_since(before):
            print_note(f"importing a module changed {change}; the setting is restored")
        if not any(True for subject in subjects for _ in applicable(checks, subject)):
            raise UserError("none of these checks applies to these attentions and patterns; see --list-checks")
    if args.record is not None and not args.all:
        subjects = _without_row(subjects, args)
    say = print_note if args.csv or args.record else partial(_print, out)
    if args.csv:
        _print_row(out, RESULT_COLUMNS)
    everything, failed = list["CheckResult"](), list["CheckResult"]()
    for subject in subjects:
        is_alone, parts = len(subjects) == 1, getattr(subject.cls, "parts", ())
        sound = {result.attention for result in failed}.isdisjoint(parts)
        results = _results(subject, checks, args, out, is_alone=is_alone, may_pass=sound)
        wrong = [result for result in results if not result.passed]
        everything, failed = everything + results, failed + wrong
        if args.junit is not None:
            _write_junit(args.junit, everything)
        if len(subjects) > 1 or args.csv or args.record:
            names = f": {', '.join(result.check for result in wrong)}" if wrong else ""
            say(f"{subject.name} {subject.pattern}: {counted(len(results), 'check')}, {len(wrong)} failed{names}")
        if len(wrong) > 1 and not args.csv:
            _print(out, headline(results))
    say(f"{counted(len(everything), 'check')}, {len(failed)} failed")
    if failed and not args.csv:
        one = f"--pattern {failed[0].pattern} --checks {failed[0].check}"
        say(f"the page 'Verification checks' maps checks to causes; add `{one}` to repeat the first failed check")
    return 1 if failed else 0


def _results(
    subject: Subject, checks: Sequence[Check], args: argparse.Namespace, out: TextIO, *, is_alone: bool, may_pass: bool
) -> list[CheckResult]:
    """Print the results of one subject as they come, record them, and return them.

    Without a row per check, there is one line per group: of every group if the subject ``is_alone``, or of those with
    failed checks. A stack with a failed part is recorded as not verified (``may_pass``).
    """
    from cab.verification import run_checks
    from cab.verification.check import CHECKS

    title = f"{subject.name} {subject.pattern}"
    if not subject.decodes and subject.pattern.is_causal:
        print_note(f"{title}: has no init_state and step; decoding is not verified")
    if not subject.padding_layouts:
        print_note(f"{title}: accepts no padding masks; padding is not verified")
    if subject.complexity is None:
        print_note(f"{title}: growth is measured but not checked (set --complexity)")
    counter = "{desc}: {n_fmt} of {total_fmt} checks"
    progress = partial(tqdm, desc=title, leave=False, disable=None, bar_format=counter)
    results: list[CheckResult] = []
    errors: set[str] = set()
    for group, members in groupby(
        run_checks(subject, checks, fail_fast=args.fail_fast, progress=progress), lambda r: CHECKS[r.check].group
    ):
        start = len(results)
        for result in members:
            results.append(result)
            if args.csv:
                passed = str(result.passed).lower()
                _print_row(out, (subject.name, str(subject.pattern), result.check, passed, result.detail))
            elif args.verbose:
                _print(out, f"  {result.check:<26} {'ok    ' if result.passed else 'FAILED'} {result.detail}")
        rows = results[start:]
        if not args.csv and ((is_alone and not args.record) or not all(row.passed for row in rows)):
            _print(out, f"{'' if is_alone else f'{title}  '}{group:<16}{_group_text(rows, errors)}")
    if not args.checks and args.device == "cpu" and not args.seed and not subject.options:
        _note(args.record or verified.remembered(), subject, results, quick=args.quick, may_pass=may_pass)
    return results


def _group_text(rows: Sequence[CheckResult], errors: set[str]) -> str:
    """Return number and seconds of the checks of a group, and its failures except repeated exceptions (``errors``)."""
    failed = [row for row in rows if not row.passed]
    new = [row for row in failed if row.error not in errors]
    errors |= {row.error for row in failed if row.error}
    text = f"{counted(len(rows), 'check'):>10} {sum(row.seconds for row in rows):>7.1f} s"
    if all("at no call" in row.detail for row in rows):
        return f"{text}  nothing measured; -v says why"
    if not new:
        return text + (f"  {len(failed)} FAILED with the same error" if failed else "")
    first, others = new[0], ", ".join(row.check for row in failed if row is not new[0])
    finding = f"{first.finding}: " if first.finding not in first.detail else ""
    detail = first.detail.partition("; longest n=")[0]
    return f"{text}  FAILED {first.check}: {finding}{detail}{f'; also {others}' if others else ''}"


def _print(out: TextIO, text: str) -> None:
    """Print a line above the progress bar."""
    with contextlib.redirect_stdout(out):
        tqdm.write(sanitize_text(text))
    out.flush()


def _print_row(out: TextIO, row: Sequence[str]) -> None:
    """Print a line of CSV immediately: a module may crash the process in the next check."""
    with contextlib.redirect_stdout(out):
        print_rows([row], as_csv=True)
    out.flush()


def _write_junit(path: Path, results: Sequence[CheckResult], *, error: str = "") -> None:
    """Write one test case per check, which services of continuous integration show, or one of an ``error``."""
    failures, tests = str(sum(not result.passed for result in results)), str(len(results) + bool(error))
    suite = ElementTree.Element(
        "testsuite", name="cab verify", tests=tests, failures=failures, errors=str(int(bool(error)))
    )
    if error:
        case = ElementTree.SubElement(suite, "testcase", classname="cab verify", name="run")
        ElementTree.SubElement(case, "error", message=sanitize_text(error))
    for result in results:
        name, time = f"{result.attention}.{result.pattern}", f"{result.seconds:.3f}"
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=result.check, time=time)
        if not result.passed:
            at = f", first in {result.guilty}" if result.guilty and result.finding else ""
            message = sanitize_text(f"{result.finding}{at}" or result.detail)
            ElementTree.SubElement(case, "failure", message=message).text = sanitize_text(result.detail)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _compare_vectors(args: argparse.Namespace) -> int:
    """Print which vectors of a port agree, and return 1 if one differs or is missing."""
    from cab.verification.ports import compare

    if len(args.attentions) != 1:
        raise UserError("--vectors verifies one file: `cab verify PORT.safetensors --vectors NAME.json`")
    if args.vectors.suffix != ".json":
        raise UserError(f"--vectors: {args.vectors} is not a manifest of `cab export`, such as vectors/kda.json")
    try:
        compared = compare(args.vectors, Path(args.attentions[0]))
    except UserError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        damage = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(
            f"--vectors: cannot read the manifest {args.vectors} ({damage}); write it again with `cab export`"
        ) from error
    wrong = [vector for vector in compared if vector.fault and not vector.is_missing]
    missing = [vector.name.partition("/") for vector in compared if vector.is_missing]
    for vector in compared if args.verbose else ():
        _print(sys.stdout, f"  {vector.name:<40} {f'FAILED {vector.fault}' if vector.fault else 'ok'}")
    if wrong:
        first = wrong[0]
        meaning = f" ({first.meaning})" if first.meaning else ""
        _print(sys.stdout, f"first difference: {first.name}{meaning}: {first.fault}")
    for case, stages in groupby(missing, lambda name: name[0]):
        _print(sys.stdout, f"missing from {case}: {', '.join(stage for _, _, stage in stages)}")
    _print(sys.stdout, f"{counted(len(compared), 'vector')}, different: {len(wrong)}, missing: {len(missing)}")
    return 1 if wrong or missing else 0


def _list_checks(*, as_csv: bool) -> None:
    from cab.verification.suite import GROUPS, select_checks

    rows = [(check.group, check.name, check.summary) for check in select_checks(GROUPS)]
    width = shutil.get_terminal_size((100, 24)).columns
    print_rows([("group", "check", "summary"), *rows], as_csv=as_csv, width=width)


def _check_record(args: argparse.Namespace) -> None:
    """Raise UserError for options that a row does not record, or a file with other columns."""
    if args.checks or args.device != "cpu" or args.seed or any(map(_is_option, args.attentions)):
        raise UserError(
            "--record requires all checks with seed 0 and default options on a CPU: remove --checks, --seed, --device "
            "and options"
        )
    check_writable(args.record.parent, "--record")
    if args.record.exists() and not verified.has_columns(args.record):
        raise UserError(f"--record: {args.record} is not a table with columns {','.join(verified.VERIFIED_COLUMNS)}")


def _without_row(subjects: Sequence[Subject], args: argparse.Namespace) -> list[Subject]:
    """Return the subjects whose row is missing, or written by other code, checks or torch."""
    rows = {(row.attention, row.pattern): row for row in verified.read_rows(args.record)}
    pending = []
    for subject in subjects:
        row = rows.get((subject.name, subject.pattern))
        if row is None or not row.holds(subject.cls, quick=args.quick):
            pending.append(subject)
    print_note(f"already verified: {len(subjects) - len(pending)}, to verify: {len(pending)}")
    return pending


def _subjects(args: argparse.Namespace, patterns: Sequence[Pattern]) -> Iterator[Subject]:
    """Yield every attention in every pattern to verify; user errors are raised before the first check runs."""
    from cab.verification.foreign import parse_options
    from cab.verification.suite import subject_of

    pairs = [word for word in args.attentions if _is_option(word)]
    targets = [word for word in args.attentions if not _is_option(word)]
    if not targets:
        raise UserError(
            "name an attention: `cab verify abc`, `cab verify FILE.py:Class --pattern CS` or `cab verify hf:llama`. "
            "`cab list attentions` prints the registered names"
        )
    _check_device(args.device)
    options: dict[str, Any] = {"complexity": args.complexity, "device": args.device}
    for target, chosen, own in chain.from_iterable(_with_parts(name, patterns, pairs) for name in targets):
        attention, claimed, name = _target(target)
        if not chosen and not claimed:
            raise UserError(f"no pattern of {target} is registered: name its pattern with --pattern NS, CS, NC or CC")
        for pattern in chosen or claimed:
            subject = subject_of(attention, pattern, options=by_part(parse_options(own)), **options)
            yield dataclasses.replace(subject, name=" ".join([name or subject.name, *own]), seed=args.seed)


def _is_option(word: str) -> bool:
    """Return whether an argument is OPTION=VALUE and not the name of an attention."""
    return word.partition("=")[0].replace(".", "_").isidentifier() and "=" in word and not is_file(word)


def _with_parts(
    target: str, patterns: Sequence[Pattern], options: list[str]
) -> Iterator[tuple[str, Sequence[Pattern], list[str]]]:
    """Yield a name, patterns and options; before those of a stack its parts, where these are not verified."""
    if is_stack(target):
        stack = ATTENTIONS.get(target)
        assert isinstance(stack, StackEntry)
        patterns = patterns or stack.patterns
        for part in stack.parts.values():
            own = [option.removeprefix(f"{part.label}.") for option in options if option.startswith(f"{part.label}.")]
            pending = [pattern for pattern in patterns if own or not verified.is_verified(code_of(part.cls), pattern)]
            if pending:
                yield part.name, pending, own
            if done := [pattern for pattern in patterns if pattern not in pending]:
                print_note(f"{part.label} is already verified in {' '.join(done)}")
    yield target, patterns, options


def _target(target: str) -> tuple[str | type, Sequence[Pattern], str]:
    """Return what a name means: an attention, its patterns, and the name of a registered class in a file."""
    from cab.verification.foreign import ForeignModule, subject_class

    if is_stack(target) or (not is_file(target) and ":" not in target):
        entry = ATTENTIONS.get(target)
        return target, entry.patterns, entry.label
    cls = subject_class(target)
    registered = ATTENTIONS.entry_of(cls)
    if registered is not None:  # in every table, a class in a file has the name of the class
        return cls, registered.patterns, ATTENTIONS.entry_of_file(target).label if is_file(target) else ""
    return cls, cls.patterns if issubclass(cls, ForeignModule) else (), ""


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{device}' is not available: {str(error).splitlines()[0]}") from error


def _note(record: Path, subject: Subject, results: Sequence[CheckResult], *, quick: bool, may_pass: bool) -> None:
    """Write the row of a pair, or remove it if a check failed; timing checks do not count."""
    from cab.verification.check import CHECKS

    counted = [result for result in results if not CHECKS[result.check].is_timed]
    reach: dict[str, int] = {}
    for result in counted:
        group = CHECKS[result.check].group
        reach[group] = max(reach.get(group, 0), result.longest)
    row = verified.VerifiedRow.of_today(subject.name, str(subject.pattern), subject.cls, quick=quick, reach=reach)
    verified.note(record, row, passed=may_pass and all(result.passed for result in counted))
