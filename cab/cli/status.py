"""`cab status`: the status of every run that was started in a results folder.

To rerun cells by their status: cab run --retry STATUSES results_dir=DIR
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cab.files.text_table import print_rows
from cab.records.record import CELL
from cab.records.results import DEFAULT_DIR
from cab.runner.folder import cell_statuses


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "results_dir", nargs="?", type=Path, default=DEFAULT_DIR, help=f"folder of results (default: {DEFAULT_DIR})"
    )
    parser.add_argument("--csv", action="store_true", help="print comma-separated values instead of a table")


def run(args: argparse.Namespace) -> int:
    print_statuses(args.results_dir, as_csv=args.csv)
    return 0


def print_statuses(results_dir: Path, *, as_csv: bool) -> None:
    """Print one row per run with its cell, status and detail."""
    rows = [
        [*(str(run.cell.get(key, "")) for key in CELL), run.status, run.detail] for run in cell_statuses(results_dir)
    ]
    print_rows([[*CELL, "status", "detail"], *rows], as_csv=as_csv)
