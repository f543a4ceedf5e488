"""`cab suite`: whether the cells of the suite measure attention (check), and what its records say (tell)."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from cab.cli.text_table import text_table
from cab.records.results import MINI_DIR

EPILOG = """\
A cell is valid if `none` is much worse than `vanilla` (effect size 10, and 20% of the way from the trivial baseline to
the best attention), half of the pairs of attentions differ significantly, and the seed SD is at most 0.1 of the SD
across attentions. In cells that require long memory, `local` must be worse than `vanilla` (effect size 5).
See docs/reference/tasks/suite.md.

examples:
  cab suite validate
  cab suite validate results/local --csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="what", required=True)
    check = commands.add_parser(
        "validate",
        description="whether the cells of the suite measure attention, from records of it",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument(
        "results", nargs="?", type=Path, default=MINI_DIR, help="a folder of records (those that come along)"
    )
    check.add_argument("--csv", action="store_true", help="CSV")
    tell = commands.add_parser(
        "report", description="what attention brings in each cell, and what each method keeps of it"
    )
    tell.add_argument(
        "results", nargs="?", type=Path, default=MINI_DIR, help="a folder of records (those that come along)"
    )


def run(args: argparse.Namespace) -> int:
    """0, or the status of :func:`_check`."""
    return _report(args.results) if args.what == "report" else _check(args)


def _report(results: Path) -> int:
    from cab.errors import UserError
    from cab.suite.cells import read_scores
    from cab.suite.lessons import lessons

    told = lessons(read_scores(results))
    if not told:
        raise UserError(f"no cell of the suite in {results} was run with attention=vanilla and attention=none")
    print("\n\n".join(told))
    return 0


def _check(args: argparse.Namespace) -> int:
    """Status 1 when a cell does not measure attention, or the cells together lack something."""
    from cab.suite.cells import read_scores
    from cab.suite.check import check_cell, check_suite

    verdicts = [check_cell(scores) for scores in read_scores(args.results)]
    rows = [
        [
            verdict.cell,
            str(verdict.attentions),
            _number(verdict.deviations, "{:.1f}"),
            _number(verdict.way, "{:.0%}"),
            _number(verdict.resolved, "{:.0%}"),
            _number(verdict.seed_spread, "{:.2f}"),
            _number(verdict.behind.get("local"), "{:.1f}"),
            "; ".join(verdict.failures) or "yes",
        ]
        for verdict in verdicts
    ]
    header = ["cell", "attentions", "none", "way", "resolved", "seeds", "local", "measures attention"]
    if args.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([header, *rows])
    else:
        print(text_table(header, rows, align="lrrrrrrl"))
    passed = sum(not verdict.failures for verdict in verdicts)
    lacking = check_suite(verdicts)
    if not args.csv:
        print(f"\n{passed} of {len(verdicts)} cells measure attention")
        for line in lacking:
            print(line)
    return int(passed < len(verdicts) or bool(lacking))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
