"""`cab suite`: validate the synthetic suite, and summarize its results."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from cab.cli.text_table import text_table
from cab.records.results import MINI_DIR

CSV_COLUMNS = ["cell", "attentions", "none", "way", "resolved", "seeds", "local", "measures attention"]

EPILOG = """\
A cell measures attention if removing attention costs at least 10 pooled standard deviations and a fifth of the range
from the trivial baseline to the best score. In addition, at least 50% of the attention pairs must differ significantly,
and the standard deviation over seeds must be at most a tenth of that across attentions. In a cell that requires long
memory, `local` must be at least 5 pooled standard deviations worse than vanilla.

examples:
  cab suite validate
  cab suite validate results/local --csv

columns of the table:
  effect size        vanilla over no attention, in pooled standard deviations
  gap lost           share of the range from trivial baseline to best attention that is lost without attention
  significant pairs  share of attention pairs that differ significantly (95%)
  seed SD ratio      standard deviation over seeds relative to that across attentions
  lead over local    vanilla over local, in pooled standard deviations
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="verb", required=True)
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
    anchors = commands.add_parser(
        "anchors",
        description="write configs/suite/anchors.csv, the anchors of its scores, from results of vanilla and none",
    )
    anchors.add_argument("results", type=Path, help="folder of results")
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
    return {"report": _report, "validate": _check, "anchors": _anchors}[args.verb](args)


def _anchors(args: argparse.Namespace) -> int:
    from cab.records.results import whole_records
    from cab.suite.anchors import PATH, write_anchors

    written = write_anchors(record for _, record in whole_records(args.results, skipped=[]))
    print(f"wrote {written} results to {PATH}", file=sys.stderr)
    return 0


def _report(args: argparse.Namespace) -> int:
    from cab.errors import UserError
    from cab.suite.cells import read_scores
    from cab.suite.summary import summarize_suite

    summaries = summarize_suite(read_scores(args.results))
    if not summaries:
        raise UserError(f"no cell of the suite in {args.results} has results of both vanilla and none; run both first")
    print("\n\n".join(summaries))
    return 0


def _check(args: argparse.Namespace) -> int:
    """Return 1 if a cell does not measure attention or the suite as a whole lacks a property."""
    from cab.suite.cells import read_scores
    from cab.suite.check import check_cell, check_suite

    verdicts = [check_cell(scores) for scores in read_scores(args.results)]
    rows = [
        [
            verdict.cell,
            str(verdict.attentions),
            _number(verdict.effect_size, "{:.1f}"),
            _number(verdict.gap_fraction, "{:.0%}"),
            _number(verdict.significant_pairs, "{:.0%}"),
            _number(verdict.seed_sd_ratio, "{:.2f}"),
            _number(verdict.leads.get("local"), "{:.1f}"),
            "; ".join(verdict.failures) or "yes",
        ]
        for verdict in verdicts
    ]
    header = [
        *("cell", "attentions", "effect size", "gap lost", "significant pairs"),
        *("seed SD ratio", "lead over local", "measures attention"),
    ]
    if args.csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([CSV_COLUMNS, *rows])
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
