"""The card of an attention, backbone or task; of an attention with the published defaults and what was measured.

A card is read from the registry and the committed tables. ``cab list NAME``, the documentation and the leaderboard page
print it.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from cab.errors import unknown_name
from cab.files.text_table import read_csv
from cab.paper.taxonomy import TaxonomyRow, taxonomy
from cab.patterns import Pattern
from cab.records.record import REFERENCE_DIRS
from cab.records.verified import is_verified
from cab.registry.entries import Entry
from cab.registry.options import argument_texts
from cab.registry.program import code_of, code_of_location
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS, is_file
from cab.registry.tables import decode_state_size
from cab.results.cells import Key, read_suite
from cab.results.costs import is_edited
from cab.results.gain import CellGain, suite_gains
from cab.results.verdict import gain_text

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = ROOT / "attentions" / "defaults.csv"
COSTS = ROOT / "results" / "efficiency" / "costs.csv"
COST_LENGTH = 8192
_table = functools.cache(read_csv)


@dataclass(frozen=True)
class CardTable:
    """A titled table of a card with its footnotes; without rows, ``text`` replaces it."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    text: str = "none"
    footnotes: Sequence[str] = ()


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
    sections: list[CardTable]


def summary(name: str) -> Summary:
    """Summarize a registered attention from its decorator and the table of verified code; UserError for other names."""
    entry = ATTENTIONS.get(name)
    location = entry.location  # without importing the class where its text was read
    code = code_of_location(location.module, location.qualname) if location.file else code_of(entry.cls)
    patterns = [str(pattern) for pattern in entry.patterns]
    verified = [(p, "verified" if is_verified(code, p) else "not with this code") for p in patterns]
    return Summary(name, entry.paper, " ".join(patterns), entry.complexity, verified)


def card_link(name: str) -> str:
    """Return the link to the summary of a registered attention on the leaderboard page, or an empty string."""
    return f"#card-{name}" if name in ATTENTIONS.names() else ""


def card(name: str) -> Card:
    """Build the card of an attention, a backbone or a task, which imports its class; UserError for other names."""
    if is_file(name) or name in ATTENTIONS:
        return _attention_card(name)
    if name in BACKBONES:
        backbone = BACKBONES.get(name)
        tests = [(task.name, *_joined(task.backbones[name])) for task in TASKS if name in task.backbones]
        return _card(backbone, [], CardTable("Tasks", ("Task", "Patterns"), tests))
    if name in TASKS:
        task = TASKS.get(name)
        facts = [("Data sets", " ".join(task.datasets)), ("In the index", "yes" if task.in_index else "no")]
        tests = [(backbone, *_joined(patterns)) for backbone, patterns in task.backbones.items()]
        return _card(task, facts, CardTable("Backbones", ("Backbone", "Patterns"), tests))
    raise unknown_name("name", name, [*ATTENTIONS.names(), *BACKBONES.names(), *TASKS.names()])


def _joined(patterns: Iterable[Pattern]) -> tuple[str]:
    return (" ".join(map(str, patterns)),)


def _card(entry: Entry[Any], facts: Sequence[tuple[str, str]], *sections: CardTable) -> Card:
    """Return the card with the facts and the options that every registered class has."""
    documentation = inspect.getdoc(entry.cls) or ""
    texts = argument_texts(documentation)
    rows = [
        (option, default if isinstance(default, str) else json.dumps(default, default=str), texts.get(option, ""))
        for option, default in entry.options.items()
    ]
    description = re.split(r"\n(?=\w+:\n)", documentation)[0].strip().replace("``", "`")
    about = [("Class", f"{entry.cls.__qualname__} ({entry.origin})"), ("Source", entry.paper)]
    options = CardTable("Options", ("Option", "Default", "Description"), rows)
    return Card(entry.name, description, [*about, *facts], [*sections, options])


def _attention_card(name: str) -> Card:
    from cab.registry.build import measure_decode_state  # imports torch

    head, entry = summary(name), ATTENTIONS.get(name)
    registered = ATTENTIONS.entry_of(entry.cls)
    state = measure_decode_state(entry) if is_edited(name) else decode_state_size(entry)
    size = f"{state} per layer, 8 heads of 64, float32" if state else "no causal pattern, so no decode state"
    facts = [
        *([("Registered name", registered.name)] if registered and registered.name != name else []),
        ("Patterns", head.patterns),
        ("Complexity", head.complexity),
        ("Decode state", size),
    ]
    notes = [(row.pattern, row.reason) for row in _taxonomy() if row.attention == name and row.reason]
    noted = [CardTable("Notes on the published patterns", ("Pattern", "Note"), notes)] if notes else []
    made = _card(entry, facts, _defaults(name), *noted)
    measured = [CardTable("Verification", ("Pattern", "Status"), head.verified), _costs(name), _scores(name)]
    return replace(made, name=name, sections=[*made.sections, *measured])


@functools.cache
def _taxonomy() -> list[TaxonomyRow]:
    return list(taxonomy())


@functools.cache
def _gains() -> dict[Key, dict[str, CellGain]]:
    return suite_gains(read_suite(REFERENCE_DIRS))


def _defaults(name: str) -> CardTable:
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
    return CardTable("Default compared with published", header, rows, text, footnotes)


def _costs(name: str) -> CardTable:
    """Return every run that measured the attention at this length; runs have no date, so none is the newest."""
    setting = {"kind": "attention", "phase": "forward+backward", "status": "ok", "length": str(COST_LENGTH)}
    title = f"Cost at {COST_LENGTH:,} tokens, forward+backward"
    header = ("Attention", "Pattern", "Time relative to softmax", "Run", "Hardware")
    rows = []
    for row in _table(COSTS):
        relative = row["relative_to_softmax"]
        if setting.items() <= row.items() and row["attention"].partition(":")[0] == name and relative:
            hardware = f"{row['hardware']}, {row['threads']} threads, width {row['embed_dim']}, {row['dtype']}"
            rows.append((row["attention"], row["pattern"], f"{float(relative):.2f}", row["run"], hardware))
    text = f"no measurement of forward and backward passes at {COST_LENGTH:,} tokens"
    return CardTable(title, header, rows, text, _remarks(name))


def _scores(name: str) -> CardTable:
    """Return K, the share of softmax's gain over no attention that the attention retains, per cell."""
    header = ("Cell", "Share of vanilla's gain, %", "Solved in seeds")
    gains = [cells[name] for cells in _gains().values() if name in cells]
    rows = [(str(gain.cell), gain_text(gain), f"{gain.solved} of {len(gain.points)}") for gain in gains]
    return CardTable("Scores", header, rows, "no reference results", _remarks(name))


def _remarks(name: str) -> list[str]:
    return ["of other code than the installed one"] if is_edited(name) else []
