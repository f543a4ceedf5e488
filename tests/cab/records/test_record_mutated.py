"""A record that was changed is refused, or is equal in everything that scoring reads. The day draws the changes."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from cab.errors import UserError
from cab.records.files import REFERENCE_DIRS, record_paths
from cab.records.record import Record, with_checksum
from cab.results.load import FRAME_COLUMNS, OBJECT_COLUMNS, load_results
from tests.helpers.attentions.trust import SEED

IDENTITY = ("cell", "config", "hash", "engine", "task_version", "initial_weights")
"""Parts of a record that its hash covers."""
VARIANT = ("cell", "config_variant")
"""It depends on the code of the task, with which `cab reproduce` compares it."""
KEY = ["task", "dataset", "backbone", "pattern", "attention", "preset", "seed", "task_version", "hash"]
SCORED = [name for name in FRAME_COLUMNS if name not in ("file", "source", *OBJECT_COLUMNS)]
JUDGED = ["K", "reason", "steps", "unfinished", "diverged", "slots"]
"""Columns of K, which a run that lacks a setting of its cell does not have."""
HOSTILE = (
    *(None, True, False, 0, 1, -1, 99, -(10**30), 10**400, 0.5, float("nan"), float("inf"), "", "x", "\ud800", "../x"),
    *("NaN", "1", "abc", "vanilla", "NS", "finished", [], {}, [[]], {"name": "abc"}),
)


def places(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of all values in JSON data, except the many numbers of a history."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        if place != ("history",) or key == 0:
            yield (*place, key)
            yield from places(value, (*place, key))


def mutated(original: dict[str, Any], draw: random.Random) -> tuple[tuple[Any, ...], bool, str]:
    """Return the changed place of a record, whether its checksum fits, and the text of the file."""
    content = copy.deepcopy(original)
    inside = [place for place in places(content) if place[0] in IDENTITY]
    place = draw.choice(inside if draw.random() < 0.5 else list(places(content)))
    parent = content
    for key in place[:-1]:
        parent = parent[key]
    if draw.random() < 0.2:
        del parent[place[-1]]
    elif draw.random() < 0.2 and isinstance(parent, dict):
        parent["added"] = draw.choice(HOSTILE)
    else:
        parent[place[-1]] = draw.choice(HOSTILE)
    is_sealed = draw.random() < 0.5
    if is_sealed:
        content.pop("checksum", None)
        content = with_checksum(content)
    text = json.dumps(content, indent=1)
    if not is_sealed and draw.random() < 0.3:
        start = draw.randrange(len(text))
        text = text[:start] + draw.choice(["", "0", "}", '"']) + text[start + draw.randrange(4) :]
    return place, is_sealed, text


@pytest.mark.drawn
def test_a_mutated_record_is_refused_or_equal(tmp_path):
    """Only what nothing else in a record depends on can differ, and only with a new checksum."""
    paths = record_paths(REFERENCE_DIRS[1])[::50]
    originals = [(path, Record.read(path).to_plain(), load_results(path)) for path in paths]
    for number in range(200):
        draw = random.Random(f"{SEED} {number}")
        original, content, table = draw.choice(originals)
        changed, is_sealed, text = mutated(content, draw)
        path = tmp_path / original.name
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        message = ""
        try:
            Record.read(path)
        except UserError as error:
            message = str(error)
        case = f"CAB_CONFORMANCE_SEED={SEED}: {original.name}, {changed}, {number}"
        if message:
            assert len(message.splitlines()) == 1, case
        elif is_sealed and (changed[0] not in IDENTITY or changed == VARIANT):
            found, expected = (set(map(tuple, rows[KEY].to_numpy())) for rows in (load_results(path), table))
            assert found <= expected, case
        else:
            found = load_results(path)
            is_refused = found["reason"].str.contains("has other settings than the suite's").all()
            equal = [name for name in SCORED if not (is_refused and name in JUDGED)]
            assert found[equal].equals(table[equal]), case
