"""`cab list`: registered attentions, backbones, tasks and cells."""

from __future__ import annotations

import argparse
import logging
import shutil
from collections import Counter
from collections.abc import Iterable

from cab.errors import UserError
from cab.files.text_table import print_rows
from cab.patterns import Pattern
from cab.registry.entries import AttentionEntry
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.tables import decode_state_size

log = logging.getLogger("cab")
Rows = list[list[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind",
        choices=("attentions", "backbones", "tasks", "cells"),
        help="for attentions, state is the size of the decode state per layer, with 8 heads of width 64 in float32",
    )
    parser.add_argument(
        "--csv",
        action="store_true",
        help="print CSV, with the origin of each entry, or with one row per cell and attention",
    )


def run(args: argparse.Namespace) -> int:
    tables = {"attentions": _attentions, "backbones": _backbones, "tasks": _tasks, "cells": _cells}
    rows = tables[args.kind]()
    if not args.csv:
        rows = _counted(rows) if args.kind == "cells" else [row[:-1] for row in rows]  # without the origin
    print_rows(rows, as_csv=args.csv, width=shutil.get_terminal_size((100, 24)).columns)
    return 0


def _attentions() -> Rows:
    header = ["attention", "patterns", "complexity", "state", "paper", "origin"]
    return [header, *([a.name, _names(a.patterns), a.complexity, _state(a), a.paper, a.origin] for a in ATTENTIONS)]


def _state(entry: AttentionEntry) -> str:
    try:
        return decode_state_size(entry)
    except UserError as error:  # of one attention, which does not concern the others
        log.warning("%s", error)
        return "-"


def _backbones() -> Rows:
    """Return a row per backbone, with the patterns in which a task tests it."""
    rows = [["backbone", "patterns", "paper", "origin"]]
    for backbone in BACKBONES:
        tested = {pattern for task in TASKS for pattern in task.backbones.get(backbone.name, ())}
        rows.append([backbone.name, _names(p for p in Pattern if p in tested), backbone.paper, backbone.origin])
    return rows


def _tasks() -> Rows:
    rows = [["task", "backbone", "patterns", "datasets", "paper", "origin"]]
    for task in TASKS:
        for backbone, patterns in task.backbones.items():
            rows.append([task.name, backbone, _names(patterns), " ".join(task.datasets), task.paper, task.origin])
    return rows


def _cells() -> Rows:
    from cab.runner.cell import runnable_cells

    return [["task", "dataset", "backbone", "pattern", "attention"], *map(list, runnable_cells())]


def _counted(rows: Rows) -> Rows:
    """Return the rows of cells with the number of their attentions instead of one row per attention."""
    header, *cells = (tuple(row[:-1]) for row in rows)
    return [[*header, "attentions"], *([*cell, str(count)] for cell, count in Counter(cells).items())]


def _names(patterns: Iterable[Pattern]) -> str:
    return " ".join(map(str, patterns))
