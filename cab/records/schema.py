"""What the JSON of a record may hold: the kinds and ranges of its fields, and the checksum over all of them."""

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

SCHEMA = 4
LARGEST_SEED = 2**31 - 1

_DEEPEST = 20
_TEXTS = ("hash", "engine", "command", "started", "ended", "status", "error")
_MAPPINGS = ("cell", "config", "versions", "revision", "hardware", "data", "baselines", "cost", "engine_facts")
_COUNTS = ("params", "steps", "processes", "best_step", "peak_memory_bytes")


def with_checksum(content: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` as JSON will spell it, with its ``checksum``: who changes the file by hand breaks it."""
    plain = json.loads(json.dumps(dict(content)))
    return plain | {"checksum": checksum_of(plain)}


def checksum_of(content: Mapping[str, Any]) -> str:
    """The SHA-256 of everything but the checksum, as JSON with sorted keys."""
    said = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def check_content(content: Mapping[str, Any], cell_names: Iterable[str]) -> None:
    """KeyError, TypeError or ValueError for what is not as a run writes it; the checksum is looked at last."""
    for names, kind in ((_TEXTS, str), (_MAPPINGS, dict), (("metrics", "history"), list)):
        for name in names:
            if not isinstance(content[name], kind):
                raise TypeError(f"{name} is {content[name]!r:.40}")
    check_hash(content["hash"])
    _check_cell(content["cell"], cell_names)
    _check_count("task_version", content["task_version"])
    if content["step"] is not None:
        _check_count("step", content["step"])
    for name in ("attention_code", "weights_reused_from"):
        if not isinstance(content[name], str):
            raise TypeError(f"{name} is {content[name]!r:.40}, no text")
    if not isinstance(content["verified"], bool | None):
        raise TypeError(f"verified is {content['verified']!r:.40}, none of true, false and null")
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
    for name in _MAPPINGS:
        _check_depth(name, content[name], _DEEPEST)
    if content["checksum"] != checksum_of(content):
        raise ValueError("its content was changed after it was written: the checksum does not fit")


def check_hash(digest: str) -> None:
    """UserError for what cannot be the name of a record's file."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", digest):
        raise UserError(f"{digest!r:.60} is not the hash of a cell: letters and digits")


def _check_cell(cell: Mapping[str, Any], names: Iterable[str]) -> None:
    _check_count("seed", cell["seed"])
    if cell["seed"] > LARGEST_SEED:
        raise ValueError(f"seed is {cell['seed']!r:.40}")
    for name in names:
        if name == "seed":
            continue
        if not isinstance(cell[name], str):
            raise TypeError(f"{name} is {cell[name]!r:.40}, no text")
        if not cell[name] and name != "config_variant":
            raise ValueError(f"{name} is empty")
    if cell["pattern"] not in tuple(Pattern):
        raise ValueError(f"pattern is {cell['pattern']!r:.40}, none of {' '.join(Pattern)}")


def _check_metric(metric: Mapping[str, Any], *, has_score: bool) -> None:
    name, value, length = metric["name"], metric.get("value"), metric.get("at_length")
    if not (isinstance(name, str) and isinstance(metric["unit"], str)):
        raise TypeError(f"metric {metric!r:.60}: a name or unit that is no text")
    if not (isinstance(metric["higher_is_better"], bool) and isinstance(metric.get("primary", True), bool)):
        raise TypeError(f"metric {metric!r:.60}: higher_is_better and primary are true or false")
    _check_number(f"the value of {name}", value)
    if value is not None and not has_score:
        raise ValueError(f"the value of {name} is {value!r:.40}, in a run without a score")
    if not (length is None or (type(length) is int and length > 0)):
        raise TypeError(f"the length of {name} is {length!r:.40}")


def _check_cost(cost: Mapping[str, Any]) -> None:
    for name, value in cost.items():
        if value is None:
            continue
        if name == "peak_memory_kind":
            if not isinstance(value, str):
                raise TypeError(f"{name} is {value!r:.40}, no text")
            continue
        _check_number(f"{name}, a cost,", value)
        if value < 0 or (name in _COUNTS and type(value) is not int):
            raise ValueError(f"{name}, a cost, is {value!r:.40}")


def _check_count(what: str, value: Any) -> None:
    if type(value) is not int or value < 0:
        raise TypeError(f"{what} is {value!r:.40}, no whole number from 0")


def _check_number(what: str, value: Any) -> None:
    """TypeError or ValueError for what is neither None nor a finite number that a float can hold."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} is {value!r:.40}, no number")
    if not (isinstance(value, int) and abs(value) < 2**63) and not math.isfinite(value):
        raise ValueError(f"{what} is {value!r:.40}, not finite")


def _check_depth(what: str, value: Any, left: int) -> None:
    if not left:
        raise ValueError(f"{what} is nested too deeply")
    if isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            _check_depth(what, part, left - 1)
