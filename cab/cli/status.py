"""`cab status`: the status of every run that was started in a results folder.

To rerun cells by their status: cab run --retry STATUSES results_dir=DIR
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cab.cli.terminal import print_note
from cab.files.text_table import counted, print_rows
from cab.records.identity import distinctions
from cab.records.record import CELL, MOST_SHOWN
from cab.results.load import DEFAULT_DIR
from cab.runner.pending import statuses_of

SPEED = ("tokens_per_second", "mfu")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results_dir", nargs="?", type=Path, default=DEFAULT_DIR, help=f"folder of results (default: {DEFAULT_DIR})"
    )
    parser.add_argument("--csv", action="store_true", help="print comma-separated values instead of a table")


def run(args: argparse.Namespace) -> int:
    print_statuses(args.results_dir, as_csv=args.csv)
    return 0


def print_statuses(results_dir: Path, *, as_csv: bool) -> None:
    """Print one row per run: its cell, the settings that distinguish it from others of the cell, status and speed.

    Of unreadable records, a few are rows, and a note counts the others.
    """
    runs = statuses_of(results_dir)
    if not runs:
        print_note(f"no run in {results_dir}")
    broken = [run for run in runs if run.status == "broken"]
    if rest := broken[MOST_SHOWN:]:
        print_note(f"no valid result record: {counted(len(rest), 'more file')} in {results_dir}")
        runs = [run for run in runs if run.status != "broken"] + broken[:MOST_SHOWN]
    cells = [[str(run.cell.get(key, "")) for key in CELL] for run in runs]
    given = [[word.partition("=")[0] for word in run.command.split()] for run in runs]
    settings = distinctions([(cell, run.config, names) for cell, run, names in zip(cells, runs, given, strict=True)])
    rows = [
        [*cell, different, run.status, run.detail, *(_short(run.speed.get(name)) for name in SPEED), run.hash]
        for cell, different, run in zip(cells, settings, runs, strict=True)
    ]
    print_rows([[*CELL, "settings", "status", "detail", *SPEED, "hash"], *rows], as_csv=as_csv)


def _short(value: float | str | None) -> str:
    return f"{float(value):.3g}" if value else ""
