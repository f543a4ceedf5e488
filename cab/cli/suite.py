"""`cab suite`: validate the synthetic suite, summarize its results, and write its anchors."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cab.files.text_table import text_table
from cab.records.record import REFERENCE_DIRS

if TYPE_CHECKING:
    from cab.suite.check import CellCheck

CSV_COLUMNS = ["cell", "core", "attentions", "gap_lost", "gap_low", "different_pairs", "graded", "measures", "grades"]
NOT_JUDGED = "not judged"

EPILOG = """\
A cell measures attention if removing attention loses at least a fifth of the range from the trivial baseline to the
best score (lower bound of the 95% interval). In addition, vanilla must exceed the memory-bounded baseline. In a cell
that requires long memory, `local` must be significantly worse than vanilla. Other cells are excluded from every score.

A cell grades attentions if at least 50% of the pairs differ significantly and at least 50% of the attentions retain 5
to 95% of softmax's gain. This requires four attentions besides vanilla and none, for pairs with several seeds each.
Pairs with none and tuned attentions are ignored.

The exit status is 1 if a judged cell does not measure attention, if a judged core cell does not grade attentions, or if
`local` or the constant-size states are worse than vanilla in no causal cell. Cells without results, without two seeds
of each anchor or without the trivial baseline are not judged.

examples:
  cab suite validate
  cab suite validate results/local --csv

columns of the table:
  attentions       attentions with several seeds, besides vanilla and none
  gap lost         share of the range from trivial baseline to best attention that is lost without attention, with 95%
                   interval
  different pairs  share of pairs that differ significantly (Welch, 95%, not corrected; at least 2 points)
  graded           share of attentions that retain 5 to 95% of softmax's gain
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="verb", required=True)
    check = commands.add_parser(
        "validate",
        description="check from results whether each cell of the suite measures attention and grades attentions",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("--csv", action="store_true", help="print CSV")
    report = commands.add_parser(
        "report",
        description="print K, the share of softmax's gain over no attention that each attention retains, per pattern",
    )
    report.add_argument(
        "--attention", nargs="+", metavar="A", help="print the verdict on these attentions among the results"
    )
    for each in (check, report):
        each.add_argument(
            "results",
            nargs="*",
            type=Path,
            default=REFERENCE_DIRS,
            help="folders of results (default: bundled reference results)",
        )
    anchors = commands.add_parser(
        "anchors", description="write configs/suite/anchors.csv from the results of vanilla and none"
    )
    anchors.add_argument("results", nargs="+", type=Path, help="folders of results")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand and return the exit status."""
    return {"report": _report, "validate": _check, "anchors": _anchors}[args.verb](args)


def _anchors(args: argparse.Namespace) -> int:
    from cab.records.results import whole_records
    from cab.suite.cells import ANCHORS_FILE, write_anchors

    written = write_anchors(record for folder in args.results for _, record in whole_records(folder, skipped=[]))
    print(f"wrote {written} results to {ANCHORS_FILE}", file=sys.stderr)
    return 0


def _report(args: argparse.Namespace) -> int:
    from cab.cli.suite_tables import gain_tables, print_verdict
    from cab.errors import UserError
    from cab.suite.cells import ANCHORS, read_suite, records_of
    from cab.suite.check import invalid_cells
    from cab.suite.gain import suite_gains

    results = read_suite(args.results)
    names = sorted({name for each in results for name in (*each.runs, *each.left_out)})
    if not names:
        raise _no_results(args.results)
    for name in args.attention or ():
        if name not in (*names, *ANCHORS):
            raise UserError(
                f"no result of attention '{name}' in {_folders(args.results)}; attentions with results: "
                f"{', '.join(names)}"
            )
        print_verdict(name, records_of(args.results))
    if not args.attention:
        print(gain_tables(suite_gains(results, invalid_cells())))
    return 0


def _no_results(folders: Sequence[Path]) -> Exception:
    from cab.errors import UserError

    return UserError(
        f"no result in {_folders(folders)} is of a cell of the suite; run `cab run suite=core attention=NAME`"
    )


def _folders(folders: Sequence[Path]) -> str:
    return " ".join(map(str, folders))


def _check(args: argparse.Namespace) -> int:
    """Return 1 if a cell does not measure attention, a core cell does not grade, or the suite lacks evidence."""
    from cab.suite.cells import read_suite
    from cab.suite.check import check_cell, check_suite

    results = read_suite(args.results)
    if all(each.is_empty for each in results):
        raise _no_results(args.results)
    checks = [check_cell(each) for each in results]
    measures = [check.measures for check in checks if check.measures is not None]
    lacking = check_suite(checks)
    if args.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([CSV_COLUMNS, *map(_csv_row, checks)])
    else:
        header = ["cell", "core", "attentions", "gap lost", "different pairs", "graded", "measures attention", "grades"]
        print(text_table(header, list(map(_row, checks)), align="llrrrrll"))
        print(f"\n{sum(measures)} of {len(measures)} judged cells measure attention")
        for line in lacking:
            print(line)
    return int(not all(measures) or any(check.flaws for check in checks if check.cell.core) or bool(lacking))


def _csv_row(check: CellCheck) -> list[str]:
    gap = ["", ""] if check.gap is None else [f"{check.gap.value:.4f}", f"{check.gap.interval()[0]:.4f}"]
    shares = ["" if share is None else f"{share:.4f}" for share in (check.different, check.graded)]
    return [*_names(check), *gap, *shares, *_judgments(check)]


def _row(check: CellCheck) -> list[str]:
    gap = "-" if check.gap is None else "{:.0%} [{:.0%}, {:.0%}]".format(check.gap.value, *check.gap.interval())
    shares = ["-" if share is None else f"{share:.0%}" for share in (check.different, check.graded)]
    return [*_names(check), gap, *shares, *_judgments(check)]


def _names(check: CellCheck) -> list[str]:
    return [str(check.cell), "yes" if check.cell.core else "no", str(check.attentions)]


def _judgments(check: CellCheck) -> list[str]:
    grades = NOT_JUDGED if check.flaws is None else "; ".join(check.flaws) or "yes"
    return [check.unknown or "; ".join(check.failures) or "yes", grades]
