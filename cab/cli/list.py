"""`cab list`: registered attentions, backbones, tasks and cells, and the card of one of them."""

from __future__ import annotations

import argparse
import logging
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from cab.cli.arguments import add_pattern
from cab.errors import UserError, nearest_name
from cab.files.disk import sanitize_text
from cab.files.text_table import ABSENT, text_table
from cab.patterns import Pattern
from cab.registry.entries import AttentionEntry
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.results.card import Card, card
from cab.results.formats import markdown
from cab.results.table import Table
from cab.runner.cell import runnable_cells

log = logging.getLogger("cab")
Rows = Iterable[tuple[str, ...]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "entry",
        metavar="attentions | backbones | tasks | cells | NAME",
        help="a table, or the card of a registered attention, backbone or task, or of FILE.py:Class: source, options, "
        "verification, decode state, cost, scores. State says whether the size of the decode state is constant or "
        "grows with the sequence",
    )
    parser.add_argument(
        "--csv",
        action="store_true",
        help="print a table as CSV, with the origin of each entry, or with one row per cell and attention",
    )
    add_pattern(parser, "list only attentions, backbones, tasks and cells of one of these patterns", nargs="+")
    parser.add_argument("--markdown", action="store_true", help="print a card as Markdown")


def run(args: argparse.Namespace) -> int:
    width = shutil.get_terminal_size((100, 24)).columns
    if args.entry not in LISTS:
        if near := nearest_name(args.entry, LISTS, cutoff=0.8):
            raise UserError(f"unknown table '{args.entry}': did you mean '{near}'?")
        if args.pattern:
            raise UserError(f"--pattern applies to {', '.join(LISTS)}, not to the card of '{args.entry}'; omit it")
        if args.csv:
            raise UserError(f"--csv applies to {', '.join(LISTS)}, not to the card of '{args.entry}'; omit it")
        shown = card(args.entry)
        print(_markdown(shown) if args.markdown else _text(shown, width))
        return 0
    if args.markdown:
        raise UserError("--markdown applies to the card of a NAME, not to a table; omit it, or use --csv")
    names, read = LISTS[args.entry]
    place = names.index("pattern" if args.entry == "cells" else "patterns")
    rows = [row for row in read() if not args.pattern or not set(row[place].split()).isdisjoint(args.pattern)]
    if not args.csv and args.entry == "cells":
        names = (*names[:-1], "attentions")
        rows = [(*cell, str(count)) for cell, count in Counter(row[:-1] for row in rows).items()]
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    if not args.csv:
        columns.pop("origin", None)
    table = Table.of(columns)
    print(table.to_csv() if args.csv else f"{table.to_text(width)}\n", end="")
    return 0


def _attentions() -> Rows:
    return ((a.name, a.supported, a.complexity, _state(a), a.paper, a.origin) for a in ATTENTIONS)


def _state(entry: AttentionEntry) -> str:
    if not any(pattern.is_causal for pattern in entry.patterns):
        return ""
    try:
        return "constant" if getattr(entry.outline, "has_constant_size_state", False) else "growing"
    except UserError as error:  # of one attention, which does not concern the others
        log.warning("%s", error)
        return ABSENT


def _backbones() -> Rows:
    """Yield a row per backbone, with the patterns in which a task tests it."""
    for entry in BACKBONES:
        tested = {pattern for task in TASKS for pattern in task.backbones.get(entry.name, ())}
        yield entry.name, " ".join(pattern for pattern in Pattern if pattern in tested), entry.paper, entry.origin


def _tasks() -> Rows:
    for task in TASKS:
        for backbone, patterns in task.backbones.items():
            yield task.name, backbone, " ".join(patterns), " ".join(task.datasets), task.paper, task.origin


LISTS: dict[str, tuple[tuple[str, ...], Callable[[], Rows]]] = {
    "attentions": (("attention", "patterns", "complexity", "state", "paper", "origin"), _attentions),
    "backbones": (("backbone", "patterns", "paper", "origin"), _backbones),
    "tasks": (("task", "backbone", "patterns", "datasets", "paper", "origin"), _tasks),
    "cells": (("task", "dataset", "backbone", "pattern", "attention"), runnable_cells),
}
"""Columns and rows of each table; those of cells are counted unless they are printed as CSV."""


# --- cards ------------------------------------------------------------------------------------------------------------


def _text(shown: Card, width: int) -> str:
    parts = [shown.name]
    for paragraph in shown.description.split("\n\n"):
        items = re.split(r"\n(?=\* )", paragraph)  # each item of a list starts a line
        parts.append("\n".join(_filled(item, width, indent="  " * item.startswith("* ")) for item in items))
    parts.append(text_table((), shown.facts, width=width))
    for table in shown.sections:
        body = replace(table, caption="").to_text(width - 2)
        notes = [_filled(note, width - 2, indent="    ") for note in table.notes]
        parts.append(table.caption + "\n" + textwrap.indent("\n".join([body, *notes]), "  "))
    return "\n\n".join(parts)


def _filled(text: str, width: int, *, indent: str) -> str:
    return textwrap.fill(sanitize_text(" ".join(text.split())), width, subsequent_indent=indent)


def _markdown(shown: Card) -> str:
    description = re.sub(r"^\\\* ", "* ", markdown(shown.description), flags=re.MULTILINE)  # items of a list
    labels, values = zip(*shown.facts, strict=True)
    parts = [f"# {shown.name}", description, Table.of({"Property": labels, "Value": values}).to_markdown()]
    parts += [f"## {table.caption}\n\n{replace(table, caption='').to_markdown()}" for table in shown.sections]
    return "\n\n".join(parts)
