"""`cab reproduce`: repeat a recorded run on this machine and compare the scores."""

from __future__ import annotations

import argparse
import logging
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cab.errors import UserError
from cab.files.disk import check_writable, sanitize_text
from cab.files.text_table import text_table
from cab.metric import Metric
from cab.records.identity import Origin
from cab.records.record import Record, Status


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
    from cab.runner.cell import Cell
    from cab.runner.report import check_names
    from cab.runner.run import run_cell

    if args.results_dir and args.results_dir.resolve() == args.result.resolve().parent:
        raise UserError(f"{args.results_dir} contains {args.result} itself: name another folder for the new record")
    if args.results_dir:
        check_writable(args.results_dir, "--results-dir")
    if not args.tolerance >= 0:
        raise UserError(f"--tolerance must be at least 0, got {args.tolerance}")
    record = Record.read(args.result)
    if record.status is not Status.FINISHED:
        raise UserError(f"{args.result} has no score to compare: its status is {record.status} ({record.error})")
    logging.getLogger().setLevel(logging.INFO)
    with tempfile.TemporaryDirectory(prefix="cab-reproduce-") as scratch:
        changes = {"results_dir": str(args.results_dir or scratch), "force": True, "retry": []}
        changes |= {"data_root": args.data_root} if args.data_root else {}
        changes |= {"device": args.device} if args.device else {}
        config = {**record.config, **changes}
        check_names(Cell.from_config(config), record, args.result)
        outcome = run_cell(config, command=record.command)
    again = outcome.record
    if again is None:
        raise UserError(f"another process is running this cell in {args.results_dir}")
    for line in differences(record, again):
        print(sanitize_text(line))
    rows, agree = compare(record.metrics, again.metrics, args.tolerance)
    print(text_table(["metric", "recorded", "repeated", "difference", "verdict"], rows, align="lrrrl"))
    return 0 if agree else 1


def compare(recorded: Sequence[Metric], again: Sequence[Metric], tolerance: float) -> tuple[list[list[str]], bool]:
    """Return one row per metric (both values, difference, verdict), and whether all are within the tolerance."""
    new = {metric.name: metric.value for metric in again}
    rows, agree = [], True
    for metric in recorded:
        old_value, new_value = metric.value, new.get(metric.name)
        if old_value is None or new_value is None:
            equal, difference = old_value is new_value, "-"
        else:
            equal = math.isclose(old_value, new_value, rel_tol=tolerance, abs_tol=0.0)
            difference = f"{new_value - old_value:+.3g}"
        agree = agree and equal
        texts = ["-" if value is None else f"{value:.6g}" for value in (old_value, new_value)]
        rows.append([metric.name, *texts, difference, "equal" if equal else "differs"])
    return rows, agree


def differences(record: Record, again: Record) -> list[str]:
    """Return one line per difference between the runs that could explain different scores."""
    lines = []
    if record.hash != again.hash:
        lines.append("the definition of the cell has changed since: the version of the task, an option, or a file")
    lines += Origin.of_record(record).changes(Origin.of_record(again)).values()
    for part in ("revision", "versions", "hardware"):
        before, after = getattr(record, part), getattr(again, part)
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                lines.append(f"{part} {key}: {before.get(key)} then, {after.get(key)} now")
    return lines
