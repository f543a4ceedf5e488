"""What the commands that read results have in common: where they are, and which of them to take."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cab.errors import UserError
from cab.files.sanitize import printable
from cab.records.results import DEFAULT_DIR, EXAMPLE_COMMAND, read_results

if TYPE_CHECKING:
    import pandas as pd

_NOTES = 20


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Where results lie, and what they are measured against."""
    parser.add_argument(
        "results",
        nargs="*",
        type=Path,
        metavar="RESULTS",
        default=[DEFAULT_DIR],
        help=f"folders of records, records, or CSV files in the published layout (default: {DEFAULT_DIR}); "
        "results/paper are the published ones",
    )
    parser.add_argument(
        "--normalization",
        default="results",
        metavar="N",
        help="results (default): measured against the given results; paper, official: against the constants of the "
        "paper, as printed or with the digits of the official script",
    )


def add_results_arguments(parser: argparse.ArgumentParser) -> None:
    """The same, and which of the results to take."""
    add_sources(parser)
    parser.add_argument("--preset", help="only results of this preset")
    parser.add_argument("--pattern", nargs="+", metavar="P", help="only these patterns, of NS CS NC CC")
    parser.add_argument("--task", nargs="+", metavar="T", help="only these tasks")
    parser.add_argument("--dataset", nargs="+", metavar="D", help="only these data sets")
    parser.add_argument(
        "--latest-version", action="store_true", help="of each task, only results of its newest version"
    )


def given_results(args: argparse.Namespace) -> tuple[pd.DataFrame, list[str]]:
    """The results that lie where the arguments say, and what was left out; UserError where there are none."""
    results, skipped = read_results(args.results)
    if results.empty:
        named = ", ".join(map(str, args.results))
        raise UserError(f"no whole result in {named}: run a cell first, as in `{EXAMPLE_COMMAND}`")
    return results, skipped


def selected_results(args: argparse.Namespace) -> pd.DataFrame:
    """Those of them that the arguments name."""
    from cab.scoring import select

    names = {"preset": args.preset, "patterns": args.pattern, "tasks": args.task, "datasets": args.dataset}
    return select(given_results(args)[0], **names, latest=args.latest_version)


def print_notes(notes: Iterable[str]) -> None:
    """What a reader of the table must know, to stderr."""
    notes = list(dict.fromkeys(notes))
    for note in notes[:_NOTES]:
        print(f"note: {printable(note)}", file=sys.stderr)
    if len(notes) > _NOTES:
        print(f"note: and {len(notes) - _NOTES} more", file=sys.stderr)
