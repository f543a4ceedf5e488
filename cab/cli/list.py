"""`cab list`: what is registered, as a table or CSV."""

from __future__ import annotations

import argparse
import csv
import logging
import sys
from pathlib import Path

from cab.errors import UserError
from cab.patterns import Pattern
from cab.record import CELL, Status
from cab.registry import ATTENTIONS, BACKBONES, TASKS, AttentionEntry
from cab.results import DEFAULT_DIR
from cab.runner.statuses import UNFINISHED, cell_statuses

RETRIED = (*(status for status in Status if status is not Status.FINISHED), UNFINISHED[1])
"""What ``--retry`` takes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=("attentions", "backbones", "tasks", "cells"),
        help="for attentions, `state` is what decoding keeps for one head of width 64 in float32",
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
        return _print(_registered(args.what), as_csv=args.csv)
    if args.what != "cells" or args.status is None:
        raise UserError("--status and --retry go with cells: cab list cells --status [RESULTS_DIR] [--retry STATUSES]")
    if args.retry is not None:
        _run_again(args.status, args.retry.split(","))
    return _print(_statuses(args.status), as_csv=args.csv)


def _registered(what: str) -> list[list[str]]:
    return {"attentions": _attentions, "backbones": _backbones, "tasks": _tasks, "cells": _cells}[what]()


def _print(rows: list[list[str]], *, as_csv: bool) -> int:
    if as_csv:
        csv.writer(sys.stdout).writerows(rows)
        return 0
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _attentions() -> list[list[str]]:
    import torch

    torch.set_num_threads(1)  # the sizes are tiny: waking threads would cost more than the work
    return [["attention", "patterns", "complexity", "state", "paper", "origin"]] + [
        [a.name, _words(a.patterns), a.complexity, decoding_state(a), a.paper, a.origin] for a in ATTENTIONS.load()
    ]


def _backbones() -> list[list[str]]:
    from cab.build import backbone_patterns

    return [["backbone", "patterns", "paper", "origin"]] + [
        [b.name, _words(backbone_patterns(b.name)), b.paper, b.origin] for b in BACKBONES.load()
    ]


def _tasks() -> list[list[str]]:
    rows = [["task", "backbone", "patterns", "datasets", "paper", "origin"]]
    for task in TASKS:
        for backbone, patterns in task.backbones.items():
            rows.append([task.name, backbone, _words(patterns), " ".join(task.datasets), task.paper, task.origin])
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


def _run_again(results_dir: Path, wanted: list[str]) -> None:
    """Run the cells again that have one of the statuses, each with the configuration it was started with."""
    from cab.runner.sweep import REPORT, run_here

    if not set(wanted) <= set(RETRIED):
        raise UserError(f"--retry takes statuses separated by commas, of {', '.join(RETRIED)}")
    logging.getLogger().setLevel(logging.INFO)
    REPORT.clear()
    for found in cell_statuses(results_dir):
        if found.status in wanted:
            changes = {"results_dir": str(results_dir), "retry": wanted, "force": False}
            run_here(({**found.config, **changes}, found.command))
    for reason in REPORT.left_out:
        logging.getLogger("cab").warning("left out: %s", reason)


def _words(patterns: tuple[Pattern, ...]) -> str:
    return " ".join(str(pattern) for pattern in patterns)


def decoding_state(entry: AttentionEntry) -> str:
    """What decoding keeps for one row and one head of width 64 in float32, in the first causal pattern.

    ``N B`` when it does not grow with the length, ``N B/token`` when it does; empty without a causal pattern.
    Measured on the state itself, after a prefix and one twice as long.
    """
    from cab.build import build_attention

    pattern = next((p for p in entry.patterns if p.is_causal), None)
    if pattern is None:
        return ""
    attention = build_attention(entry.name, pattern=pattern, embed_dim=64, num_heads=1).eval()
    before, after = attention.state_bytes(512), attention.state_bytes(1024)
    growth = (after - before) / 512
    return f"{growth:,.0f} B/token" if growth else f"{after:,} B"
