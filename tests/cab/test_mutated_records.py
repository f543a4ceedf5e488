"""A record that was changed is refused, or is equal in everything that scoring reads."""

from __future__ import annotations

import copy
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, seed, settings, strategies as st

from cab.errors import UserError
from cab.records.record import Record, with_checksum
from cab.records.results import COLUMNS, MINI_DIR, load_results
from tests.cab.hostile import SCALE, SEED

EXAMPLES = 1_000 * SCALE
IDENTITY = ("cell", "config", "hash", "engine", "task_version", "initial_weights")
"""Parts of a record that its hash covers."""
PATHS = sorted(MINI_DIR.glob("*.json"))[::15]
CONTENTS = [json.loads(path.read_text()) for path in PATHS]
TABLES = [load_results(path) for path in PATHS]
SCORED = [name for name in COLUMNS if name not in ("file", "record")]

HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(10**30), max_value=10**30),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", "\ud800", "../x", "NaN", 10**400, [], {}, [[]], {"name": "abc"}, "abc", "vanilla", "NS", 99]),
)


class Text(str):
    """The text of a file, of which a failing test prints the length alone."""

    def __repr__(self) -> str:
        return f"<{len(self)} characters>"


def places(content: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values in JSON data, except the many numbers of a history."""
    found = [place] if place else []
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        if place != ("history",) or key == 0:
            found += places(value, (*place, key))
    return found


@st.composite
def mutations(draw: st.DrawFn) -> tuple[int, tuple[Any, ...], bool, str]:
    """The number of a record, the first place that is changed, whether the checksum fits, and the text of the file."""
    number = draw(st.integers(0, len(CONTENTS) - 1))
    content = copy.deepcopy(CONTENTS[number])
    other = CONTENTS[draw(st.integers(0, len(CONTENTS) - 1))]
    is_sealed = draw(st.booleans())
    inside = draw(st.sampled_from([name for name in IDENTITY if name in content])) if draw(st.booleans()) else None
    chosen = [place for place in places(content) if inside in (None, place[0])]
    place = draw(st.sampled_from(chosen))
    parent = content
    for key in place[:-1]:
        parent = parent[key]
    action = draw(st.sampled_from(("replace", "replace", "remove", "add", "other")))
    if action == "replace":
        parent[place[-1]] = draw(HOSTILE)
    elif action == "remove":
        del parent[place[-1]]
    elif action == "add" and isinstance(parent, dict):
        parent[draw(st.text(max_size=8))] = draw(HOSTILE)
    elif place[0] in other:
        content[place[0]] = copy.deepcopy(other[place[0]])
    if is_sealed:
        content.pop("checksum", None)
        content = with_checksum(content)
    text = json.dumps(content, indent=1)
    if not is_sealed and draw(st.booleans()):
        start = draw(st.integers(0, len(text) - 1))
        text = text[:start] + draw(st.text(max_size=3)) + text[start + draw(st.integers(0, 3)) :]
    return number, place, is_sealed, Text(text)


def check(mutation: tuple[int, tuple[Any, ...], bool, str], folder: Path) -> None:
    """Read a mutated record. Only what nothing else in a record depends on can differ, and only with a new checksum."""
    number, place, is_sealed, text = mutation
    note(f"CAB_CONFORMANCE_SEED={SEED}: {PATHS[number].name}, {place}")
    path = folder / PATHS[number].name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    message = ""
    try:
        Record.read(path)
    except UserError as error:
        message = str(error)
    if message:
        assert len(message.splitlines()) == 1
        return
    found, expected = load_results(path)[SCORED], TABLES[number][SCORED]
    if is_sealed and place[0] not in IDENTITY:
        names = ["task", "dataset", "backbone", "pattern", "attention", "preset", "seed", "task_version", "hash"]
        assert set(map(tuple, found[names].to_numpy())) <= set(map(tuple, expected[names].to_numpy()))
        return
    assert found.equals(expected)


@pytest.mark.slow
def test_a_mutated_record_is_refused_or_equal(tmp_path: Path) -> None:
    """Mutations that the day draws."""
    run = given(mutations())(lambda mutation: check(mutation, tmp_path))
    run = settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))(run)
    seed(zlib.crc32(SEED.encode()))(run)()
