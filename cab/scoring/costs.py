"""Costs of attentions: committed measurements, and tables of costs from which efficiency lengths are computed."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.records.results import PAPER_DIR

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["attention", "pattern", "phase", "length", "seconds", "bytes", "complexity"]
_OURS = set(COLUMNS[:6])
_SETTING = ["protocol", "batch_size", "embed_dim", "num_heads", "dtype", "device", "hardware", "threads", "torch"]
_PUBLISHED = {"attention", "length", "time_ms", "memory_mib"}


def load_costs(path: str | Path) -> pd.DataFrame:
    """Load costs with the columns attention, pattern, phase, length, seconds, bytes, complexity.

    Reads the output of ``cab efficiency`` and the published format ``attention,length,time_ms,memory_mib`` (pattern NS,
    forward). Column ``complexity`` (``n``, ``n log n``, ``n^2``, ...) defaults to ``n``. An empty time or memory (out
    of memory) becomes NaN. Rows whose ``kind`` is not ``attention`` are skipped.

    Raises:
        ValueError: the file is missing, lacks columns, contains invalid numbers, or mixes measurement settings.
    """
    import pandas as pd

    path = Path(path)
    try:
        table = pd.read_csv(path, skipinitialspace=True)
    except FileNotFoundError:
        raise UserError(f"no cost file at {path}; create it with `cab efficiency --out {path}`") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a CSV file of costs: {error}") from None
    table.columns = [str(name).strip() for name in table.columns]
    if set(table.columns) >= _PUBLISHED:
        milliseconds, mebibytes = (_numbers(table[name], path) for name in ("time_ms", "memory_mib"))
        table = table.assign(pattern="NS", phase="forward", seconds=milliseconds / 1e3, bytes=mebibytes * 2**20)
    if lacking := sorted(_OURS - set(table.columns)):
        raise UserError(
            f"{path} lacks the columns {', '.join(lacking)}; required: {','.join(COLUMNS[:6])}, "
            f"or {','.join(sorted(_PUBLISHED))}"
        )
    if "kind" in table:
        table = table[table["kind"] == "attention"]
    _refuse_mixtures(table, path)
    if table.empty:
        raise UserError(f"{path} contains no costs")
    for name in ("length", "seconds", "bytes"):
        table[name] = _numbers(table[name], path)
    if table["length"].isna().any():
        raise UserError(f"{path}: column 'length' has an empty value")
    if "complexity" not in table:
        table["complexity"] = "n"
    return table[COLUMNS].fillna({"complexity": "n"})


def _refuse_mixtures(table: pd.DataFrame, path: Path) -> None:
    for name in table.columns.intersection(_SETTING):
        settings = sorted(map(str, table[name].dropna().unique()))
        if len(settings) > 1:
            raise UserError(
                f"{path} mixes costs with different {name} ({', '.join(settings)}); keep rows with one {name}"
            )


def _numbers(column: pd.Series, path: Path) -> pd.Series:
    import pandas as pd

    values = pd.to_numeric(column, errors="coerce")
    wrong = (values.isna() & column.notna()) | (values < 0) | (values == float("inf"))
    if column.name == "length":
        wrong |= values == 0
    if wrong.any():
        kind = "positive" if column.name == "length" else "non-negative"
        raise UserError(f"{path}: {column.name} '{column[wrong].iloc[0]}' is not a finite {kind} number")
    return values


MEASURED = PAPER_DIR.parent / "efficiency" / "costs.csv"
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
    decode: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in _measured_rows():
        key = row["attention"], row["pattern"]
        if (row["status"], row["kind"]) != ("ok", "attention"):
            continue
        if row["phase"] == "decode":
            decode.setdefault(key, {})[row["length"]] = row
        elif (row["run"], row["phase"], row["length"]) == (RUNS.get(row["pattern"]), "forward", str(LENGTH)):
            forward[key] = row
    costs: dict[tuple[str, str], dict[str, Any]] = {key: {} for key in {**forward, **decode}}
    for key, row in forward.items():
        softmax = forward.get(("vanilla", key[1]))
        costs[key]["time"] = float(row["relative_to_softmax"])
        costs[key]["memory"] = float(row["bytes"]) / float(softmax["bytes"]) if softmax else None
    for key, rows in decode.items():
        if long := rows.get(str(LENGTH)):
            costs[key]["decode_ms"] = 1e3 * float(long["seconds"])
            costs[key]["state_bytes"] = int(float(long["bytes"]))
            costs[key]["has_constant_state"] = rows.get(str(SHORT), {}).get("bytes") == long["bytes"]
    return {key: MeasuredCost(**fields) for key, fields in costs.items()}


@functools.cache
def cost_hardware() -> tuple[str, ...]:
    """Return processor, threads and version of PyTorch of the forward passes of :data:`RUNS`."""
    machines = {
        f"{row['hardware']}, {row['threads']} thread{'s' * (row['threads'] != '1')}, PyTorch {row['torch']}"
        for row in _measured_rows()
        if row["run"] in RUNS.values()
    }
    return tuple(sorted(machines))


@functools.cache
def _measured_rows() -> list[dict[str, str]]:
    with MEASURED.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
