"""Validation of the JSON content of a record: types and ranges of its fields, and the checksum."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from cab.errors import UserError
from cab.patterns import Pattern
from cab.records.identity import check_identity

SCHEMA = 5
ADDED = ("initial_weights", "unpublished_files")
"""Fields that records of schema 4 do not have; they are empty then. All other fields are the same in both schemas."""
LARGEST_SEED = 2**31 - 1

_DEEPEST = 20
_TEXTS = ("hash", "engine", "command", "started", "ended", "status", "error")
_MAPPINGS = ("cell", "config", "versions", "revision", "hardware", "data", "baselines", "cost", "engine_facts")
_COUNTS = ("params", "steps", "processes", "best_step", "steps_to_solve", "peak_memory_bytes")


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``content`` as JSON data with a ``checksum``, which detects manual edits of the file."""
    plain = json.loads(json.dumps(dict(content)))
    return plain | {"checksum": checksum_of(plain)}


def checksum_of(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all other fields, as JSON with sorted keys."""
    others = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(others, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_content(content: Mapping[str, Any], cell_names: Iterable[str]) -> None:
    """Raise KeyError, TypeError or ValueError if a run did not write this content.

    The checksum and the identity are compared last.
    """
    for names, kind in ((_TEXTS, str), (_MAPPINGS, dict), (("metrics", "history"), list)):
        for name in names:
            if not isinstance(content[name], kind):
                raise TypeError(f"{name} has the wrong type: {content[name]!r:.40}")
    check_hash(content["hash"])
    _check_cell(content["cell"], cell_names)
    _check_count("task_version", content["task_version"])
    if content["step"] is not None:
        _check_count("step", content["step"])
    for name in ("attention_code", "weights_reused_from"):
        if not isinstance(content[name], str):
            raise TypeError(f"{name} is not text: {content[name]!r:.40}")
    if not isinstance(content["verified"], bool | None):
        raise TypeError(f"verified is not true, false or null: {content['verified']!r:.40}")
    for name in ("started", "ended"):
        datetime.datetime.fromisoformat(content[name])
    if not isinstance(content["revision"]["commit"], str):
        raise TypeError("the commit is not text")
    for metric in content["metrics"]:
        _check_metric(metric, has_score=content["status"] == "finished")
    _check_cost(content["cost"])
    for name, values in content["baselines"].items():
        for value in values.values():
            _check_number(f"baseline {name}", value)
    for entry in content["history"]:
        for name, value in entry.items():
            _check_number(f"{name} in the history", value)
        _check_count("step in the history", entry["step"])
    weights = content.get("initial_weights", {})
    if not isinstance(weights, dict):
        raise TypeError(f"initial_weights has the wrong type: {weights!r:.40}")
    _check_depth("initial_weights", weights, _DEEPEST)
    files = content.get("unpublished_files", [])
    if not (isinstance(files, list) and all(isinstance(name, str) for name in files)):
        raise TypeError(f"unpublished_files is not a list of texts: {files!r:.40}")
    for name in _MAPPINGS:
        _check_depth(name, content[name], _DEEPEST)
    if content["checksum"] != checksum_of(content):
        raise ValueError("it was changed after it was written: the checksum does not match")
    check_identity(content)


def check_hash(digest: str) -> None:
    """Raise UserError if ``digest`` is not a valid name of a record."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", digest):
        raise UserError(f"{digest!r:.60} is not the hash of a cell, which has letters and digits only")


def _check_cell(cell: Mapping[str, Any], names: Iterable[str]) -> None:
    _check_count("seed", cell["seed"])
    if cell["seed"] > LARGEST_SEED:
        raise ValueError(f"seed {cell['seed']!r:.40} is larger than {LARGEST_SEED}")
    for name in names:
        if name == "seed":
            continue
        if not isinstance(cell[name], str):
            raise TypeError(f"{name} is not text: {cell[name]!r:.40}")
        if not cell[name] and name != "config_variant":
            raise ValueError(f"{name} is empty")
    if cell["pattern"] not in tuple(Pattern):
        raise ValueError(f"pattern {cell['pattern']!r:.40} is not one of {' '.join(Pattern)}")


def _check_metric(metric: Mapping[str, Any], *, has_score: bool) -> None:
    name, value, length = metric["name"], metric.get("value"), metric.get("at_length")
    if not (isinstance(name, str) and isinstance(metric["unit"], str)):
        raise TypeError(f"metric {metric!r:.60}: its name and unit must be text")
    if not (isinstance(metric["higher_is_better"], bool) and isinstance(metric.get("primary", True), bool)):
        raise TypeError(f"metric {metric!r:.60}: higher_is_better and primary must be true or false")
    _check_number(f"the value of {name}", value)
    if value is not None and not has_score:
        raise ValueError(f"the value of {name} is {value!r:.40}, in a run without a score")
    if not (length is None or (type(length) is int and length > 0)):
        raise TypeError(f"the length of {name} is not a positive integer: {length!r:.40}")


def _check_cost(cost: Mapping[str, Any]) -> None:
    for name, value in cost.items():
        if value is None:
            continue
        if name == "peak_memory_kind":
            if not isinstance(value, str):
                raise TypeError(f"{name} is not text: {value!r:.40}")
            continue
        _check_number(f"cost {name}", value)
        if value < 0:
            raise ValueError(f"cost {name} is {value!r:.40}, which is negative")
        if name in _COUNTS and type(value) is not int:
            raise ValueError(f"cost {name} is {value!r:.40}, which is not an integer")


def _check_count(field: str, value: Any) -> None:
    if type(value) is not int or value < 0:
        raise TypeError(f"{field} is not a non-negative integer: {value!r:.40}")


def _check_number(field: str, value: Any) -> None:
    """Raise TypeError or ValueError unless ``value`` is None or a finite number in the range of a float."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{field} is not a number: {value!r:.40}")
    if not (isinstance(value, int) and abs(value) < 2**63) and not math.isfinite(value):
        raise ValueError(f"{field} is not finite: {value!r:.40}")


def _check_depth(field: str, value: Any, left: int) -> None:
    if not left:
        raise ValueError(f"{field} is nested too deeply")
    if isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            _check_depth(field, part, left - 1)
