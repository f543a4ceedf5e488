"""`cab leaderboard`: the table, the page and the figures that are made from results."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cab.results import DEFAULT_DIR

DEFAULT_OUT = DEFAULT_DIR / "leaderboard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        default=[DEFAULT_DIR],
        help=f"folders of records, records, or CSV files in the published layout (default: {DEFAULT_DIR})",
    )
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help=f"where to write (default: {DEFAULT_OUT})")
    parser.add_argument(
        "--format",
        choices=("page", "markdown"),
        default="page",
        help="page: index.html and leaderboard.csv in the --out folder; markdown: tables to stdout, for a README",
    )
    parser.add_argument(
        "--normalization",
        choices=("own", "paper", "official"),
        default="own",
        help="what the index is relative to: the given results, or the paper's constants (printed, or full precision)",
    )
    parser.add_argument("--costs", type=Path, metavar="CSV", help="what `cab efficiency` wrote; adds its curves")
    parser.add_argument("--figures", action="store_true", help="also write the paper's figures as PNG and PDF")


def run(args: argparse.Namespace) -> int:
    from cab.reports.leaderboard import load_boards, write_csv

    with _warnings_kept() as skipped:
        boards = load_boards(args.results, normalization=args.normalization)
    costs = None
    if args.costs:
        from cab.scoring import load_costs

        costs = load_costs(args.costs)
    if args.format == "markdown":
        from cab.reports.markdown import markdown

        print(markdown(boards))
    else:
        from cab.reports.page import write_page

        _report(write_csv(boards, args.out))
        _report(write_page(boards, args.out, normalization=args.normalization, costs=costs, skipped=skipped))
    if args.figures:
        from cab.reports.paper_figures import write_figures

        for path in write_figures(boards, args.out, costs=costs):
            _report(path)
    return 0


def _report(path: Path) -> None:
    print(f"wrote {path}", file=sys.stderr)


@contextmanager
def _warnings_kept() -> Iterator[list[str]]:
    """The warnings about broken records, for the page to show as well."""
    kept: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.getMessage())

    handler, logger = Keep(logging.WARNING), logging.getLogger("cab.results")
    logger.addHandler(handler)
    try:
        yield kept
    finally:
        logger.removeHandler(handler)
