"""`cab list`: what is registered, as a table or CSV."""

from __future__ import annotations

import argparse
import csv
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cab.cli.text_table import text_table
from cab.errors import UserError
from cab.files.sanitize import csv_cell
from cab.patterns import Pattern
from cab.records.record import CELL, Status
from cab.records.results import DEFAULT_DIR
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS, AttentionEntry
from cab.runner.statuses import UNFINISHED, cell_statuses

if TYPE_CHECKING:
    from cab.runner.report import Report

RETRIED = (*(status for status in Status if status is not Status.FINISHED), UNFINISHED[1])
"""What ``--retry`` takes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=("attentions", "backbones", "tasks", "cells", "taxonomy", "published"),
        help="for attentions, `state` is what decoding keeps for one head of width 64 in float32; taxonomy is the "
        "paper's Table 13, each claim beside what is verified; published is Table 3, each cell beside what preset "
        "paper runs and what is known to differ",
    )
    parser.add_argument("--csv", action="store_true", help="comma-separated values instead of an aligned table")
    parser.add_argument(
        "--status",
        nargs="?",
        type=Path,
        const=DEFAULT_DIR,
        metavar="RESULTS_DIR",
        help=f"of cells: what became of each that was started in RESULTS_DIR ({DEFAULT_DIR})",
    )
    parser.add_argument(
        "--retry",
        metavar="STATUSES",
        help=f"with --status: run the cells again that have one of these, separated by commas: {', '.join(RETRIED)}",
    )


def run(args: argparse.Namespace) -> int:
    if args.status is None and args.retry is None:
        _print(_registered(args.what), as_csv=args.csv)
        return 0
    if args.what != "cells" or args.status is None:
        raise UserError("--status and --retry go with cells: cab list cells --status [RESULTS_DIR] [--retry STATUSES]")
    exit_status = 0 if args.retry is None else _run_again(args.status, args.retry.split(",")).exit_status
    _print(_statuses(args.status), as_csv=args.csv)
    return exit_status


def _registered(what: str) -> list[list[str]]:
    if what == "taxonomy":
        from cab.paper.taxonomy import rows

        return rows()
    if what == "published":
        from cab.paper.published_cells import PublishedCell, published_cells

        return [list(PublishedCell._fields), *map(list, published_cells())]
    return {"attentions": _attentions, "backbones": _backbones, "tasks": _tasks, "cells": _cells}[what]()


def _print(rows: list[list[str]], *, as_csv: bool) -> None:
    if as_csv:
        csv.writer(sys.stdout).writerows(map(csv_cell, row) for row in rows)
    else:
        print(text_table(rows[0], rows[1:], align="l" * len(rows[0])))


def _attentions() -> list[list[str]]:
    import torch

    torch.set_num_threads(1)  # the sizes are tiny: waking threads would cost more than the work
    return [["attention", "patterns", "complexity", "state", "paper", "origin"]] + [
        [a.name, _names(a.patterns), a.complexity, decoding_state(a), a.paper, a.origin] for a in ATTENTIONS.load()
    ]


def _backbones() -> list[list[str]]:
    from cab.registry.build import backbone_patterns

    return [["backbone", "patterns", "paper", "origin"]] + [
        [b.name, _names(backbone_patterns(b.name)), b.paper, b.origin] for b in BACKBONES.load()
    ]


def _tasks() -> list[list[str]]:
    rows = [["task", "backbone", "patterns", "datasets", "paper", "origin"]]
    for task in TASKS:
        for backbone, patterns in task.backbones.items():
            rows.append([task.name, backbone, _names(patterns), " ".join(task.datasets), task.paper, task.origin])
    return rows


def _cells() -> list[list[str]]:
    from cab.runner.cell import runnable_cells

    return [["task", "dataset", "backbone", "pattern", "attention"], *map(list, runnable_cells())]


def _statuses(results_dir: Path) -> list[list[str]]:
    rows = [
        [*(str(found.cell.get(key, "")) for key in CELL), found.status, found.detail]
        for found in cell_statuses(results_dir)
    ]
    return [[*CELL, "status", "detail"], *rows]


def _run_again(results_dir: Path, wanted: list[str]) -> Report:
    """Run the cells again that have one of the statuses, each with the configuration it was started with."""
    from cab.runner.launch import run_here
    from cab.runner.report import Job, Report

    if not set(wanted) <= set(RETRIED):
        raise UserError(f"--retry takes statuses separated by commas, of {', '.join(RETRIED)}")
    logging.getLogger().setLevel(logging.INFO)
    changes = {
        "results_dir": str(results_dir),
        "retry": [status for status in wanted if status in tuple(Status)],
        "force": False,
    }
    found = [each for each in cell_statuses(results_dir) if each.status in wanted]
    report = run_here((Job({**each.config, **changes}, each.command) for each in found), Report(expected=len(found)))
    report.log_end()
    return report


def _names(patterns: tuple[Pattern, ...]) -> str:
    return " ".join(str(pattern) for pattern in patterns)


def decoding_state(entry: AttentionEntry) -> str:
    """What decoding keeps for one row and one head of width 64 in float32, in the first causal pattern.

    ``N B`` when it does not grow with the length, ``N B/token`` when it does; empty without a causal pattern.
    Measured on the state itself, after a prefix and one twice as long.
    """
    from cab.registry.build import build_attention

    pattern = next((p for p in entry.patterns if p.is_causal), None)
    if pattern is None:
        return ""
    attention = build_attention(entry.name, pattern=pattern, embed_dim=64, num_heads=1).eval()
    before, after = attention.state_bytes(512), attention.state_bytes(1024)
    growth = (after - before) / 512
    return f"{growth:,.0f} B/token" if growth else f"{after:,} B"
