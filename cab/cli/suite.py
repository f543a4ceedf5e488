"""`cab suite`: validate the synthetic suite, summarize its results, and write its anchors."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cab.cli.arguments import results_path
from cab.errors import UserError, unknown_name
from cab.files.disk import sanitize_text
from cab.files.text_table import print_rows, text_table
from cab.records.record import REFERENCE_DIRS

if TYPE_CHECKING:
    from cab.records.record import Record
    from cab.reports.suite_board import SuiteBoard
    from cab.results.cells import CellResults
    from cab.results.check import CellCheck

COLUMNS = ["cell", "core", "attentions", "gap_lost", "gap_low", "different_pairs", "graded", "measures", "grades"]

EPILOG = """\
A cell measures attention if removing attention loses at least a fifth of the range from the trivial baseline to the
best score (lower bound of the 95% interval). In addition, vanilla must exceed the memory-bounded baseline. In a cell
that requires long memory, `local` must be significantly worse than vanilla. Other cells are excluded from every score.

A cell grades attentions if at least 50% of the pairs differ significantly and at least 50% of the attentions retain 5
to 95% of softmax's gain. This requires four attentions besides vanilla and none, for pairs with several seeds each.
Pairs with none and tuned attentions are ignored.

The exit status is 1 if a judged cell does not measure attention, or if a judged core cell does not grade attentions. It
is also 1 if `local` or the constant-size states are worse than vanilla in no causal cell. Cells without results,
without two seeds of each anchor or without the trivial baseline are not judged.

examples:
  cab suite validate
  cab suite validate results/local --csv

columns:
  attentions       attentions with several seeds, besides vanilla and none
  gap_lost         share of the range from trivial baseline to best attention that is lost without attention
  gap_low          lower bound of its 95% interval
  different_pairs  share of pairs that differ significantly (Welch, 95%, not corrected; at least 2 points)
  graded           share of attentions that retain 5 to 95% of softmax's gain
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
        description="print the board: K, the share of softmax's gain over no attention that each attention retains, "
        "per ability and pattern",
    )
    report.add_argument(
        "--attention", nargs="+", metavar="A", help="print the verdict on these attentions among the results"
    )
    for command in (check, report):
        command.add_argument(
            "results",
            nargs="*",
            type=results_path,
            default=REFERENCE_DIRS,
            help="folders of results (default: bundled reference results)",
        )
    anchors = commands.add_parser(
        "anchors", description="write configs/suite/anchors.csv from the results of vanilla and none, and settings.json"
    )
    anchors.add_argument("results", nargs="+", type=results_path, help="folders of results")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand and return the exit status."""
    from cab.results.cells import ANCHORS, read_suite, records_of

    if args.verb == "anchors":
        return _anchors(args.results)
    results, folders = read_suite(args.results), " ".join(map(str, args.results))
    attentions = sorted({name for cell in results for name in (*cell.runs, *cell.left_out)})
    if not attentions and (args.verb == "report" or all(cell.is_empty for cell in results)):
        raise UserError(f"no result in {folders} is of a cell of the suite; run `cab run suite=core attention=NAME`")
    if args.verb == "validate":
        for cell in results if args.results != REFERENCE_DIRS else ():
            cell.warn()
        return _validate(results, as_csv=args.csv)
    for name in args.attention or ():
        if name not in (*attentions, *ANCHORS):
            raise unknown_name("attention with results", name, attentions)
        print_verdict(name, records_of(args.results))
    if not args.attention:
        from cab.records.results import load_results
        from cab.reports.sentence import main_sentence
        from cab.reports.suite_board import suite_board

        board = suite_board(load_results(args.results))
        if board is None:
            raise UserError(f"no finished run in {folders} is of a cell of the suite")
        print("\n\n".join([main_sentence(board), *board_texts(board)]))
    return 0


def board_texts(board: SuiteBoard) -> Iterator[str]:
    """Yield one table per pattern, with its abilities, and the legend."""
    from cab.reports.board_tables import COST_BLOCK, board_table

    for pattern in board.patterns:
        table = board_table(board, [ability for ability in board.abilities if ability.pattern == pattern])
        chosen = [number for number, column in enumerate(table.columns) if column.group != COST_BLOCK]
        header = ["attention", "family", *(table.columns[number].label for number in chosen)]
        rows = [
            [f"{row.sign} {row.label}".lstrip(), row.group, *(row.cells[number].marked for number in chosen)]
            for row in table.rows
        ]
        yield text_table(header, rows, align="ll" + "r" * len(chosen))
    yield "\n".join(table.notes)


def print_verdict(name: str, records: Iterable[Record]) -> None:
    """Print the verdict on an attention per pattern."""
    from cab.results.cells import ANCHORS
    from cab.results.verdict import judge_attention

    if name in ANCHORS:
        print(f"\n{name} is an anchor of the suite: its K is 100 (vanilla) or 0 (none) by definition")
        return
    verdicts = judge_attention(name, records)
    if not verdicts:
        reason = "no verdict, because its results have other options than the cells of the suite"
        print(f"\n{sanitize_text(name)}: {reason}")
    for lines in verdicts:
        print("\n" + "\n".join(map(sanitize_text, lines)))


def _anchors(folders: Sequence[Path]) -> int:
    from cab.records.results import whole_records
    from cab.results.cells import ANCHORS_FILE, write_anchors, write_settings

    written = write_anchors(record for folder in folders for _, record in whole_records(folder, skipped=[]))
    write_settings()
    print(f"wrote {written} results to {ANCHORS_FILE}", file=sys.stderr)
    return 0


def _validate(results: Sequence[CellResults], *, as_csv: bool) -> int:
    """Return 1 if a cell does not measure attention, a core cell does not grade, or the suite lacks evidence."""
    from cab.results.check import check_cell, check_suite

    checks = [check_cell(cell) for cell in results]
    measures = [check.measures for check in checks if check.measures is not None]
    lacking = check_suite(checks)
    rows = [_row(check, as_csv=as_csv) for check in checks]
    print_rows([COLUMNS, *rows], as_csv=as_csv, align="llrrrrrll")
    if not as_csv:
        print(f"\n{sum(measures)} of {len(measures)} judged cells measure attention")
        for line in lacking:
            print(line)
    return int(not all(measures) or any(check.flaws for check in checks if check.cell.core) or bool(lacking))


def _row(check: CellCheck, *, as_csv: bool) -> list[str]:
    absent, style = ("", ".4f") if as_csv else ("-", ".0%")
    gap, low = (check.gap.value, check.gap.interval()[0]) if check.gap else (None, None)
    shares = [absent if x is None else f"{x:{style}}" for x in (gap, low, check.different, check.graded)]
    names = [str(check.cell), "yes" if check.cell.core else "no", str(check.attentions)]
    grades = "not judged" if check.flaws is None else "; ".join(check.flaws) or "yes"
    return [*names, *shares, check.unknown or "; ".join(check.failures) or "yes", grades]
