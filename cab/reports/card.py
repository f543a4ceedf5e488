"""The card of an attention: its source, its defaults compared with the published ones, and what was measured.

A :class:`Card` is read from the registry and the committed tables. ``cab show``, the documentation and the leaderboard
page print it.
"""

from __future__ import annotations

import csv
import functools
import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from cab.paper.taxonomy import taxonomy
from cab.records.record import REFERENCE_DIRS
from cab.records.verified import is_verified
from cab.registry.code_hash import attention_hash
from cab.registry.options import argument_texts
from cab.registry.registries import ATTENTIONS, AttentionEntry, is_file
from cab.registry.tables import decode_state_size
from cab.suite.cells import read_suite
from cab.suite.gain import SuiteGains, suite_gains
from cab.suite.verdict import cell_text

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = ROOT / "attentions" / "defaults.csv"
COSTS = ROOT / "results" / "efficiency" / "costs.csv"
COST_LENGTH = 8192
NO_DIFFERENCES = "as published: no difference is recorded in attentions/defaults.csv"
NOT_PUBLISHED = "no published defaults are recorded for a class in a file"
NO_STATE = "no causal pattern, so no decode state"
NOT_MEASURED = f"no measurement of forward and backward passes at {COST_LENGTH:,} tokens"
NO_SCORES = "no reference results"


@dataclass(frozen=True)
class Section:
    """A titled part of a card: a table with its footnotes, or ``text`` if there are no rows."""

    title: str
    text: str = ""
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    footnotes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Summary:
    """The part of a card that is known without importing the class.

    Attributes:
        verified: status per pattern, ``verified`` or ``not with this code``.
    """

    name: str
    paper: str
    patterns: str
    complexity: str
    verified: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Card:
    """Everything that is known about an attention; tables have one row per line of their section."""

    summary: Summary
    origin: str
    class_name: str
    description: str
    state: str
    sections: tuple[Section, ...]

    def facts(self) -> list[tuple[str, str]]:
        """Return the labels and values at the head of the card."""
        own = self.summary
        return [
            ("Class", f"{self.class_name} ({self.origin})"),
            ("Source", own.paper),
            ("Patterns", own.patterns),
            ("Complexity", own.complexity),
            ("Decode state", f"{self.state} per layer, 8 heads of 64, float32" if self.state else NO_STATE),
        ]


def summary(name: str) -> Summary:
    """Summarize a registered attention from its decorator and the table of verified code.

    Raises:
        UserError: if no attention has this name.
    """
    entry = ATTENTIONS.get(name)
    code = _code(entry)
    patterns = [str(pattern) for pattern in entry.patterns]
    verified = tuple((p, "verified" if is_verified(code, p) else "not with this code") for p in patterns)
    return Summary(name, entry.paper, " ".join(patterns), entry.complexity, verified)


def card_link(name: str) -> str:
    """Return the link to the summary of a registered attention on the leaderboard page, or an empty string."""
    return f"#card-{name}" if name in ATTENTIONS.names() else ""


def card(name: str) -> Card:
    """Build the card of an attention, which imports its class.

    Raises:
        UserError: if no attention has this name.
    """
    own = summary(name)
    entry = ATTENTIONS.get(name)
    documentation = inspect.getdoc(entry.cls) or ""
    notes = _table("Notes on the published patterns", ("Pattern", "Note"), _notes(name), "")
    return Card(
        summary=own,
        origin=entry.origin,
        class_name=entry.cls.__qualname__,
        description=re.split(r"\n(?=\w+:\n)", documentation)[0].strip().replace("``", "`"),
        state=decode_state_size(entry),
        sections=(
            _defaults(name),
            *((notes,) if notes.rows else ()),
            _table("Options", ("Option", "Default", "Description"), _options(entry, documentation), "none"),
            _table("Verification", ("Pattern", "Status"), own.verified, "none"),
            _table(f"Cost at {COST_LENGTH:,} tokens, forward+backward", _COST_HEADER, _costs(name), NOT_MEASURED),
            _table("Scores", ("Cell", "Share of vanilla's gain, %", "Solved in seeds"), _shares(name), NO_SCORES),
        ),
    )


_DEFAULT_HEADER = ("Part", "Default", "Published", "Source", "Note")
_COST_HEADER = ("Attention", "Pattern", "Time relative to softmax", "Run", "Hardware")


def _table(
    title: str, header: tuple[str, ...], rows: Iterator[tuple[str, ...]] | tuple[tuple[str, ...], ...], otherwise: str
) -> Section:
    found = tuple(rows)
    return Section(title, header=header, rows=found) if found else Section(title, text=otherwise)


def _code(entry: AttentionEntry) -> str:
    """Return the hash of the code of an entry, without importing it where its text was read."""
    from cab.records.verified import code_of

    place = entry.place
    return attention_hash(place.qualname, place.file, place.module) if place.file else code_of(entry.cls)


@functools.cache
def _read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _defaults(name: str) -> Section:
    """Compare the defaults with the published ones; sources that several rows share are footnotes."""
    own = [row for row in _read(DEFAULTS) if row["attention"] == name]
    numbers = {source: i for i, source in enumerate(dict.fromkeys(row["source"] for row in own), 1)}
    rows = []
    for row in own:
        published = "as published" if row["published"] == row["default"] else row["published"]
        rows.append((row["part"], row["default"], published, f"[{numbers[row['source']]}]", row["note"]))
    without_rows = NOT_PUBLISHED if is_file(name) else NO_DIFFERENCES
    section = _table("Default compared with published", _DEFAULT_HEADER, tuple(rows), without_rows)
    return replace(section, footnotes=tuple(f"[{number}] {source}" for source, number in numbers.items()))


@functools.cache
def _verdicts() -> tuple[tuple[str, str, str], ...]:
    return tuple((row.attention, row.pattern, row.reason) for row in taxonomy() if row.reason)


def _notes(name: str) -> Iterator[tuple[str, ...]]:
    return ((pattern, reason) for attention, pattern, reason in _verdicts() if attention == name)


def _options(entry: AttentionEntry, documentation: str) -> Iterator[tuple[str, ...]]:
    texts = argument_texts(documentation)
    for option, default in entry.options.items():
        value = default if isinstance(default, str) else json.dumps(default, default=str)
        yield option, value, texts.get(option, "")


def _costs(name: str) -> Iterator[tuple[str, ...]]:
    """Yield every run that measured the attention at this length; runs have no date, so none is the newest."""
    for row in _read(COSTS):
        fits = row["kind"] == "attention" and row["phase"] == "forward+backward" and row["status"] == "ok"
        is_own = row["attention"].partition(":")[0] == name
        if fits and is_own and row["length"] == str(COST_LENGTH) and row["relative_to_softmax"]:
            ratio = f"{float(row['relative_to_softmax']):.2f}"
            hardware = f"{row['hardware']}, {row['threads']} threads, {row['dtype']}"
            yield row["attention"], row["pattern"], ratio, row["run"], hardware


@functools.cache
def _gains() -> SuiteGains:
    return suite_gains(read_suite(REFERENCE_DIRS))


def _shares(name: str) -> Iterator[tuple[str, ...]]:
    """Yield K, the share of softmax's gain over no attention that the attention retains, per cell."""
    for gains in _gains().cells.values():
        if name in gains:
            yield str(gains[name].cell), cell_text(gains[name]), f"{gains[name].solved} of {len(gains[name].points)}"
