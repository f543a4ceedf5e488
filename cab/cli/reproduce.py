"""`cab reproduce`: repeat a recorded run on this machine and compare the scores."""

from __future__ import annotations

import argparse
import logging
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cab.errors import UserError
from cab.files.disk import check_writable, sanitize_text
from cab.files.text_table import text_table
from cab.metric import Metric
from cab.records.identity import described, differences
from cab.records.record import Record, Status

if TYPE_CHECKING:
    from cab.runner.cell import Cell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", type=Path, metavar="RESULT", help="record of a finished run")
    parser.add_argument("--data-root", metavar="FOLDER", help="folder of the data sets (default: that of the record)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="device (default: that of the record)")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.0,
        metavar="R",
        help="maximum relative difference of equal scores (default: 0)",
    )
    parser.add_argument("--results-dir", type=Path, help="folder for the new record (default: it is discarded)")


def run(args: argparse.Namespace) -> int:
    """Return 0 if all scores are equal, else 1."""
    from cab.runner.cell import Cell, current_config
    from cab.runner.engine import repeated_config
    from cab.runner.report import check_names
    from cab.runner.run import run_cell

    if args.results_dir:
        if args.results_dir.resolve() == args.result.resolve().parent:
            raise UserError(f"{args.results_dir} contains {args.result} itself: name another folder for the new record")
        check_writable(args.results_dir, "--results-dir")
    if not args.tolerance >= 0:
        raise UserError(f"--tolerance must be at least 0, got {args.tolerance}")
    record = Record.read(args.result)
    if record.status is not Status.FINISHED:
        raise UserError(f"{args.result} has no score to compare: its status is {record.status} ({record.error})")
    logging.getLogger().setLevel(logging.INFO)
    changes = {name: getattr(args, name) for name in ("data_root", "device") if getattr(args, name)}
    with tempfile.TemporaryDirectory(prefix="cab-reproduce-") as scratch:
        folder = str(args.results_dir or scratch)
        config = repeated_config(record, **changes, results_dir=folder, force=True, retry=[])
        cell = Cell.from_config(current_config(record))
        check_names(cell, record, args.result)
        repeated = run_cell(config, command=record.command).record
    if repeated is None:
        raise UserError(f"another process is running this cell in {args.results_dir}")
    for line in _differences(record, repeated, cell):
        print(sanitize_text(line))
    rows = _compare(record.metrics, repeated.metrics, args.tolerance)
    print(text_table(["metric", "recorded", "repeated", "difference", "outcome"], rows, align="lrrrl"))
    return int(any(outcome == "differs" for *_, outcome in rows))


def _compare(recorded: Sequence[Metric], repeated: Sequence[Metric], tolerance: float) -> list[list[str]]:
    """Return both values, difference and outcome of each metric."""
    values = {metric.name: metric.value for metric in repeated}
    rows = []
    for metric in recorded:
        old, new = metric.value, values.get(metric.name)
        is_equal, difference = old is new, "-"
        if old is not None and new is not None:
            is_equal = math.isclose(old, new, rel_tol=tolerance, abs_tol=0.0)
            difference = f"{new - old:+.3g}"
        texts = ["-" if value is None else f"{value:.6g}" for value in (old, new)]
        rows.append([metric.name, *texts, difference, "equal" if is_equal else "differs"])
    return rows


def _differences(record: Record, repeated: Record, cell: Cell) -> Iterator[str]:
    """Yield one line per difference between the runs that could explain different scores."""
    if record.hash != cell.hash:
        yield "the definition of the cell has changed since: a version of the task, the backbone or the attention"
    for kind, text in differences(record.identity(cell.renamed), repeated.identity(cell.renamed)).items():
        yield described(kind, text)
    for field in ("revision", "hardware"):
        old, new = getattr(record, field), getattr(repeated, field)
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                yield f"{field} {key}: {old.get(key)} then, {new.get(key)} now"
