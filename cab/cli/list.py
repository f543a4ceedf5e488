"""`cab list`: registered attentions, backbones, tasks and cells."""

from __future__ import annotations

import argparse
import logging

from cab.errors import UserError
from cab.files.text_table import print_rows
from cab.patterns import Pattern
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS, AttentionEntry

log = logging.getLogger("cab")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "kind",
        choices=("attentions", "backbones", "tasks", "cells"),
        help="for attentions, state is the size of the decode state per layer, with 8 heads of width 64 in float32",
    )
    parser.add_argument("--csv", action="store_true", help="print comma-separated values instead of a table")


def run(args: argparse.Namespace) -> int:
    rows = {"attentions": _attentions, "backbones": _backbones, "tasks": _tasks, "cells": _cells}[args.kind]()
    print_rows(rows, as_csv=args.csv)
    return 0


def _attentions() -> list[list[str]]:
    import torch

    from cab.registry.build import decoding_state

    def state(entry: AttentionEntry) -> str:
        try:
            return decoding_state(entry)
        except UserError as error:  # of one attention, which does not concern the others
            log.warning("%s", error)
            return "-"

    torch.set_num_threads(1)  # the sizes are tiny: waking threads would cost more than the work
    return [["attention", "patterns", "complexity", "state", "paper", "origin"]] + [
        [a.name, _names(a.patterns), a.complexity, state(a), a.paper, a.origin] for a in ATTENTIONS.load()
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


def _names(patterns: tuple[Pattern, ...]) -> str:
    return " ".join(str(pattern) for pattern in patterns)
