"""Committed cost measurements of registered attentions, relative to softmax (results/efficiency/costs.csv)."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass

from cab.records.results import PAPER_DIR

PATH = PAPER_DIR.parent / "efficiency" / "costs.csv"
LENGTH = 8192
"""Length of the measurements, in tokens."""
SHORT = 256
RUNS = {"NS": "roof_ns", "CS": "roof_cs"}
"""Run of the forward passes of each pattern, which measures every attention on one machine."""


@dataclass(frozen=True)
class MeasuredCost:
    """Cost of an attention at :data:`LENGTH` tokens; None if it is not measured.

    Attributes:
        time: time of a forward pass relative to fused softmax attention.
        memory: peak memory of a forward pass relative to fused softmax attention.
        decode_ms: time of decoding one token, in milliseconds.
        state_bytes: size of the decode state.
        has_constant_state: whether the state has the same size after :data:`SHORT` tokens; False if unknown.
    """

    time: float | None = None
    memory: float | None = None
    decode_ms: float | None = None
    state_bytes: int | None = None
    has_constant_state: bool = False


@functools.cache
def measured_costs() -> dict[tuple[str, str], MeasuredCost]:
    """Return the costs by (attention, pattern)."""
    forward: dict[tuple[str, str], dict[str, str]] = {}
    decode: dict[tuple[str, str], dict[int, dict[str, str]]] = {}
    with PATH.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            key, length = (row["attention"], row["pattern"]), int(row["length"])
            if (row["status"], row["kind"]) != ("ok", "attention"):
                continue
            if row["phase"] == "decode":
                decode.setdefault(key, {})[length] = row
            elif (row["run"], row["phase"], length) == (RUNS.get(row["pattern"]), "forward", LENGTH):
                forward[key] = row
    return {key: _cost(forward, key, decode.get(key, {})) for key in {**forward, **decode}}


@functools.cache
def cost_hardware() -> tuple[str, ...]:
    """Return processor, threads and version of PyTorch of the forward passes of :data:`RUNS`."""
    with PATH.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["run"] in RUNS.values()]
    found = {
        f"{row['hardware']}, {row['threads']} thread{'s' * (row['threads'] != '1')}, PyTorch {row['torch']}"
        for row in rows
    }
    return tuple(sorted(found))


def _cost(
    forward: dict[tuple[str, str], dict[str, str]], key: tuple[str, str], steps: dict[int, dict[str, str]]
) -> MeasuredCost:
    own, softmax, step = forward.get(key), forward.get(("vanilla", key[1])), steps.get(LENGTH)
    return MeasuredCost(
        float(own["relative_to_softmax"]) if own else None,
        float(own["bytes"]) / float(softmax["bytes"]) if own and softmax else None,
        1e3 * float(step["seconds"]) if step else None,
        int(float(step["bytes"])) if step else None,
        step is not None and SHORT in steps and steps[SHORT]["bytes"] == step["bytes"],
    )
