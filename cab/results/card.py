"""The card of an attention, backbone or task; of an attention with the published defaults and what was measured.

A card is read from the registry and the committed tables. ``cab list NAME``, the documentation and the leaderboard page
print it.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cab.files.text_table import read_csv
from cab.records.files import REFERENCE_DIRS, ROOT
from cab.records.verified import is_verified
from cab.registry.entries import RegistryEntry
from cab.registry.names import is_file, is_stack, unknown_class
from cab.registry.program import code_of, code_of_location
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.stacks import parts_of
from cab.results.costs import MEASURED, is_edited
from cab.results.formats import TableCell, gain, texts
from cab.results.load import load_results
from cab.results.retained import gains_table
from cab.results.table import Column, Row, Table

if TYPE_CHECKING:
    import pandas as pd

    from cab.results.paper_values import TaxonomyRow

DEFAULTS = ROOT / "attentions" / "defaults.csv"
COST_LENGTH = 8192  # the longest default of `cab efficiency`
_table = functools.cache(read_csv)


class Summary(NamedTuple):
    """The part of a card that is known without importing the class; ``verified`` has pattern and status."""

    name: str
    paper: str
    patterns: str
    complexity: str
    verified: list[tuple[str, str]]


@dataclass(frozen=True)
class Card:
    """Everything that is known about a registered class: facts as labels and values, and tables."""

    name: str
    description: str
    facts: list[tuple[str, str]]
    sections: list[Table]


def summary(name: str) -> Summary:
    """Summarize a registered attention from its decorator and the table of verified code; UserError for other names."""
    entry = ATTENTIONS.get(name)
    location = entry.location  # without importing the class where its text was read
    code = code_of_location(location.module, location.qualname) if location.file else code_of(entry.cls)
    patterns = [str(pattern) for pattern in entry.patterns]
    verified = [(p, "verified" if is_verified(code, p) else "not with this code") for p in patterns]
    return Summary(name, entry.paper, " ".join(patterns), entry.complexity, verified)


def card(name: str) -> Card:
    """Build the card of an attention, a backbone or a task, which imports its class; UserError for other names."""
    if is_file(name) or is_stack(name) or name in ATTENTIONS:
        return _attention_card(name)
    if name in BACKBONES:
        backbone = BACKBONES.get(name)
        tests = [(task.name, " ".join(task.backbones[name])) for task in TASKS if name in task.backbones]
        return _card(backbone, [], _section("Tasks", ("Task", "Patterns"), tests))
    if name in TASKS:
        task = TASKS.get(name)
        facts = [("Data sets", " ".join(task.datasets)), ("In the index", "yes" if task.in_index else "no")]
        tests = [(backbone, " ".join(patterns)) for backbone, patterns in task.backbones.items()]
        return _card(task, facts, _section("Backbones", ("Backbone", "Patterns"), tests))
    raise unknown_class("name", name, [*ATTENTIONS.names(), *BACKBONES.names(), *TASKS.names()])


def _section(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], **options: Any) -> Table:
    """Return a table of texts; without rows, the option ``empty`` replaces it."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(header)
    return Table.of(dict(zip(header, map(list, columns), strict=True)), caption=title, **options)


def _card(entry: RegistryEntry[Any], facts: Sequence[tuple[str, str]], *sections: Table) -> Card:
    """Return the card with the facts and the options that every registered class has."""
    documentation = inspect.getdoc(entry.cls) or ""
    rows = []
    for prefix, part in parts_of(entry).items():
        described = part.texts
        for option, default in part.options.items():
            text = default if isinstance(default, str) else json.dumps(default, default=str)
            rows.append((f"{prefix}{option}", text, described.get(option, "")))
    description = re.split(r"\n(?=\w+:\n)", documentation)[0].strip().replace("``", "`")
    about = [("Class", f"{entry.cls.__qualname__} ({entry.origin})"), ("Source", entry.paper)]
    options = _section("Options", ("Option", "Default", "Description"), rows)
    return Card(entry.name, description, [*about, *facts], [*sections, options])


def _attention_card(name: str) -> Card:
    from cab.registry.build import measure_decode_state  # imports torch

    head, entry = summary(name), ATTENTIONS.get(name)
    registered = ATTENTIONS.entry_of(entry.cls)
    state = measure_decode_state(entry)
    size = f"{state} per layer, 8 heads of 64, float32" if state else "no causal pattern, so no decode state"
    facts = [
        *([("Registered name", registered.name)] if registered and registered.name != name else []),
        ("Patterns", head.patterns),
        ("Complexity", head.complexity),
        ("Decode state", size),
    ]
    notes = [(row.pattern, row.reason) for row in _taxonomy() if row.attention == name and row.reason]
    noted = [_section("Notes on the published patterns", ("Pattern", "Note"), notes)] if notes else []
    made = _card(entry, facts, _defaults(name), *noted)
    measured = [_section("Verification", ("Pattern", "Status"), head.verified), _costs(name), _scores(name)]
    return replace(made, name=name, sections=[*made.sections, *measured])


@functools.cache
def _taxonomy() -> list[TaxonomyRow]:
    from cab.results.paper_values import taxonomy  # imports pandas

    return list(taxonomy())


@functools.cache
def _gains() -> pd.DataFrame:
    return gains_table(load_results(REFERENCE_DIRS))


def _defaults(name: str) -> Table:
    """Compare the defaults with the published ones; sources that several rows share are footnotes."""
    sources: dict[str, int] = {}
    rows = []
    for row in _table(DEFAULTS):
        if row["attention"] == name:
            source = sources.setdefault(row["source"], len(sources) + 1)
            published = "as published" if row["published"] == row["default"] else row["published"]
            rows.append((row["part"], row["default"], published, f"[{source}]", row["note"]))
    text = "as published: no difference is recorded in attentions/defaults.csv"
    if is_file(name):
        text = "no published defaults are recorded for a class in a file"
    header = ("Part", "Default", "Published", "Source", "Note")
    footnotes = [f"[{number}] {source}" for source, number in sources.items()]
    return _section("Default compared with published", header, rows, empty=text, remarks=footnotes)


def _costs(name: str) -> Table:
    """Return every run that measured the attention at this length; runs have no date, so none is the newest."""
    setting = {"kind": "attention", "phase": "forward+backward", "status": "ok", "length": str(COST_LENGTH)}
    title = f"Cost at {COST_LENGTH:,} tokens, forward+backward"
    header = ("Attention", "Pattern", "Time relative to softmax", "Run", "Hardware")
    rows = []
    for row in _table(MEASURED):
        relative = row["relative_to_softmax"]
        if setting.items() <= row.items() and row["attention"].partition(":")[0] == name and relative:
            hardware = f"{row['hardware']}, {row['threads']} threads, width {row['embed_dim']}, {row['dtype']}"
            rows.append((row["attention"], row["pattern"], f"{float(relative):.2f}", row["run"], hardware))
    text = f"no measurement of forward and backward passes at {COST_LENGTH:,} tokens"
    return _section(title, header, rows, empty=text, remarks=_remarks(name))


def _scores(name: str) -> Table:
    """Return K, the share of softmax's gain over no attention that the attention retains, per cell."""
    gains = _gains()
    rows = gains[(gains["attention"] == name) & (gains["seeds"] > 0)].to_dict("records")
    columns = [
        Column("Share of vanilla's gain, %", list(map(gain, rows))),
        Column("Reached 90 in seeds", [TableCell(f"{row['reached_90']} of {row['seeds']}") for row in rows]),
        Column("Note", texts(row["note"] for row in rows)),
    ]
    labels = [Row(f"{row['task']} {row['backbone']} {row['pattern']}") for row in rows]
    return Table(labels, columns, "Cell", "Scores", remarks=_remarks(name), empty="no reference results")


def _remarks(name: str) -> list[str]:
    return ["of other code than the installed one"] if is_edited(name) else []
