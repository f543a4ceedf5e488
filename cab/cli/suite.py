"""`cab suite`: validate the synthetic suite, and summarize its results."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from cab.cli.text_table import text_table
from cab.records.results import MINI_DIR

EPILOG = """\
A cell measures attention if the network without attention is at least 10 pooled standard deviations and a fifth of
the range between the trivial baseline and the best score worse than vanilla, at least 50% of the attention pairs differ
significantly, and the standard deviation between seeds is at most a tenth of that between attentions. In a cell that
requires long memory, `local` must be significantly worse than vanilla.

examples:
  cab suite validate
  cab suite validate results/local --csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="what", required=True)
    check = commands.add_parser(
        "validate",
        description="check from results whether each cell of the suite measures attention",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument(
        "results",
        nargs="?",
        type=Path,
        default=MINI_DIR,
        help="folder of results (default: bundled reference results)",
    )
    check.add_argument("--csv", action="store_true", help="print CSV")
    report = commands.add_parser(
        "report", description="summarize how much attention improves each cell, and the share that each method retains"
    )
    report.add_argument(
        "results",
        nargs="?",
        type=Path,
        default=MINI_DIR,
        help="folder of results (default: bundled reference results)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the subcommand and return the exit status."""
    return _report(args.results) if args.what == "report" else _check(args)


def _report(results: Path) -> int:
    from cab.errors import UserError
    from cab.suite.cells import read_scores
    from cab.suite.summary import summarize_suite

    summaries = summarize_suite(read_scores(results))
    if not summaries:
        raise UserError(f"no cell of the suite in {results} has results of both vanilla and none; run both first")
    print("\n\n".join(summaries))
    return 0


def _check(args: argparse.Namespace) -> int:
    """Return 1 if a cell does not measure attention or the suite as a whole lacks something."""
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
        titles = ["cell", "attentions", "none (SD)", "none (range)", "significant pairs", "seed SD", "local (SD)"]
        print(text_table([*titles, "measures attention"], rows, align="lrrrrrrl"))
    passed = sum(not verdict.failures for verdict in verdicts)
    lacking = check_suite(verdicts)
    if not args.csv:
        print(f"\n{passed} of {len(verdicts)} cells measure attention")
        for line in lacking:
            print(line)
    return int(passed < len(verdicts) or bool(lacking))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
