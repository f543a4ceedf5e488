"""Every column of suite.csv, recomputed from the JSON files and the tables without cab.results."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from cab.records.files import REFERENCE_DIRS
from cab.registry.registries import ATTENTIONS
from cab.results.load import load_results
from cab.results.suite_board import suite_csv, suite_of

ROOT = Path(__file__).parents[3]
SUITE = ROOT / "configs" / "suite"
ANCHORS = ("vanilla", "none")
Row = dict[str, Any]
Key = tuple[str, str, str]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


CELLS = {(r["task"], r["backbone"], r["pattern"]): r for r in rows_of(SUITE / "cells.csv") if r["core"] == "yes"}
FLAGS = {True: "yes", False: "no"}
VERIFIED = {(r["code_hash"], r["pattern"]) for r in rows_of(ROOT / "results/verified.csv") if r["mode"] == "full"}


def runs() -> dict[tuple[Key, str], list[Row]]:
    """The records of the core cells by cell and attention, without those of the anchors."""
    found: dict[tuple[Key, str], list[Row]] = defaultdict(list)
    lines = (line for folder in REFERENCE_DIRS for line in (folder / "records.jsonl").read_text().splitlines())
    for record in map(json.loads, lines):
        key, name = tuple(record["cell"][part] for part in ("task", "backbone", "pattern")), record["cell"]["attention"]
        cell = CELLS.get(key)
        options = [option.split("=") for option in cell["options"].split()] if cell else []
        values = [(str(record["config"].get(a, {}).get(b)), v) for (a, b), v in ((n.split("."), v) for n, v in options)]
        if cell and name not in ANCHORS and all(one == other for one, other in values):
            found[key, name].append(record)
    return found


def anchor_rows() -> dict[tuple[Key, str], list[dict[str, str]]]:
    found = defaultdict(list)
    for row in rows_of(SUITE / "anchors.csv"):
        found[(row["task"], row["backbone"], row["pattern"]), row["attention"]].append(row)
    return found


def numbers(rows: list[dict[str, str]], column: str) -> list[float]:
    return [float(row[column]) for row in rows if row[column]]


def recomputed_cell(
    key: Key, records: dict[str, list[Row]], anchors: dict[str, list[dict[str, str]]]
) -> dict[str, Row]:
    """The columns of one cell, by attention."""
    cell, scale = CELLS[key], np.log if CELLS[key]["scale"] == "log" else np.asarray
    values = {name: numbers(anchors[name], "test") for name in ANCHORS}
    for name, own in records.items():
        values[name] = [m["value"] for record in own for m in record["metrics"] if m["name"] == cell["metric"]]
    scores = {name: scale(np.array(found)) for name, found in values.items()}
    softmax, without = (scores[name].mean() for name in ANCHORS)
    points = {name: 100 * (found - without) / (softmax - without) for name, found in scores.items()}
    losses = [float(np.mean(numbers(anchors[name], "validation"))) for name in ANCHORS]
    softmax_steps = np.mean(numbers(anchors["vanilla"], "steps"))
    columns: dict[str, Row] = {}
    for name, found in points.items():
        steps = [record["cost"]["steps_to_solve"] for record in records.get(name, [])]
        if name in ANCHORS:
            steps = numbers(anchors[name], "steps")
        is_solved = len(steps) == len(found) and None not in steps
        columns[name] = {"K": found.mean(), "seeds": len(found), "reached_90": int((found >= 90).sum())}
        columns[name]["steps_vs_softmax"] = np.mean(steps) / softmax_steps if is_solved else math.nan
        columns[name] |= {"low": math.nan, "high": math.nan, "bound": math.nan, "vs_softmax": "", "note": ""}
        if name not in ANCHORS and len(found) > 1:
            columns[name]["low"], columns[name]["high"] = interval(points, name)
        if name in records:
            columns[name]["note"] = note(records[name], found.mean(), losses)
    for is_tuned in (False, True):
        names = [name for name, found in points.items() if name not in ANCHORS and len(found) > 1]
        names = [name for name in names if name.endswith("(tuned)") == is_tuned]
        for name, bound in holm_bounds(points, names).items():
            columns[name]["bound"] = bound
            columns[name]["vs_softmax"] = word(points[name], bound)
    for name, found in points.items():
        if name not in ANCHORS and len(found) == 1:
            columns[name]["vs_softmax"] = "one seed"
        matches = name == "vanilla" or columns[name]["vs_softmax"] == "solved"
        columns[name]["best"] = matches and all(map(is_verified, records.get(name, [])))
    return columns


def is_verified(record: Row) -> bool:
    return bool(record["verified"]) or (record["attention_code"], record["cell"]["pattern"]) in VERIFIED


def t_estimate(points: dict[str, np.ndarray], name: str) -> tuple[float, float, float]:
    """K, its standard error with the variance of the anchors by the delta method, and degrees of freedom."""
    k = points[name].mean() / 100
    weights = {name: 1.0, "vanilla": k, "none": 1 - k}
    parts = {each: w**2 * points[each].var(ddof=1) / len(points[each]) for each, w in weights.items()}
    variance = sum(parts.values())
    squares = sum(part**2 / (len(points[each]) - 1) for each, part in parts.items())
    return 100 * k, math.sqrt(variance), variance**2 / squares if squares else math.inf


def interval(points: dict[str, np.ndarray], name: str) -> tuple[float, float]:
    k, error, degrees = t_estimate(points, name)
    half = stats.t.ppf(0.975, degrees) * error
    return k - half, k + half


def holm_bounds(points: dict[str, np.ndarray], names: list[str]) -> dict[str, float]:
    """One-sided bounds at the level of each step of Holm's procedure."""
    found = {name: t_estimate(points, name) for name in names}
    p_values = {
        name: stats.t.cdf((k - 98) / error, df) if error else float(k >= 98) for name, (k, error, df) in found.items()
    }
    bounds, rejects = {}, 0
    for name in sorted(p_values, key=lambda name: p_values[name]):
        k, error, degrees = found[name]
        bounds[name] = k + (stats.t.ppf(1 - 0.05 / (len(names) - rejects), degrees) * error if error else 0)
        rejects += p_values[name] < 0.05 / (len(names) - rejects)
    return bounds


def word(found: np.ndarray, bound: float) -> str:
    """No reference result near the ceiling has 14 different seeds, and none is better than softmax attention."""
    if bound < 98:
        return "worse"
    assert len(found) < 14 or found.var() == 0
    return "solved" if found.min() >= 98 else "undecided"


def note(records: list[Row], k: float, losses: list[float]) -> str:
    unfinished = diverged = 0
    for record in records:
        history = [(h["step"], h["validation"]) for h in record["history"] if h.get("validation") is not None]
        gains = [(step, 100 * (losses[1] - loss) / (losses[1] - losses[0])) for step, loss in history]
        if record["cost"]["steps_to_solve"] is None:
            best = max(gain for _, gain in gains)
            early = [gain for step, gain in gains if step <= 0.8 * record["config"]["trainer"]["max_steps"]]
            is_diverged = best - gains[-1][1] > 10
            diverged += is_diverged
            unfinished += not is_diverged and best - max(early) > 2
    options, facts = records[0]["config"]["attention"], records[0]["config"]["task"].get("pairs", 0)
    is_few = any((options.get(name) or facts) < facts for name in ("num_landmarks", "num_inducing"))
    words = ["unfinished"] if unfinished and not diverged and k <= 98 else []
    return ", ".join([*words, *(["diverged"] if diverged else []), *(["few slots"] if is_few else [])])


def costs() -> dict[tuple[str, str], Row]:
    """Cost at 8,192 tokens by attention and pattern, with the relation to vanilla."""
    rows = [
        r for r in rows_of(ROOT / "results/efficiency/costs.csv") if (r["status"], r["kind"]) == ("ok", "attention")
    ]
    forward = {
        (r["attention"], r["pattern"]): r
        for r in rows
        if (r["run"], r["phase"], r["length"]) == (f"roof_{r['pattern'].lower()}", "forward", "8192")
    }
    decode = {(r["attention"], r["length"]): r for r in rows if (r["run"], r["phase"]) == ("decode_cs", "decode")}
    found: dict[tuple[str, str], Row] = defaultdict(dict)
    for (name, pattern), row in forward.items():
        found[name, pattern]["time"] = float(row["relative_to_softmax"])
        found[name, pattern]["memory"] = float(row["bytes"]) / float(forward["vanilla", pattern]["bytes"])
    for (name, length), row in decode.items():
        if length == "8192":
            same = decode[name, "256"]["bytes"] == row["bytes"]
            size = {"ms": 1e3 * float(row["seconds"]), "bytes": float(row["bytes"]), "constant": same}
            found[name, "CS"] |= size
    return found


def recomputed() -> pd.DataFrame:
    records, anchors, cost = runs(), anchor_rows(), costs()
    families = {name: row["family"] for row in rows_of(SUITE / "families.csv") for name in row["attentions"].split()}
    states = {row["attention"]: row for row in rows_of(SUITE / "states.csv")}
    table: dict[str, Row] = defaultdict(dict)
    for key, cell in CELLS.items():
        of_cell = {name: own for (where, name), own in records.items() if where == key}
        ends = {name: anchors[key, name] for name in ANCHORS}
        prefix = f"{key[2]}.{cell['ability'].replace(' ', '_')}"
        for name, columns in recomputed_cell(key, of_cell, ends).items():
            table[name] |= {f"{prefix}.{column}": value for column, value in columns.items()}
    for name, row in table.items():
        base = name.removesuffix("(tuned)")
        own = [record for (_, attention), found in records.items() if attention == name for record in found]
        family = families.get(base.partition("(")[0], "other")
        row |= {"family": family, "own": False, "verified": "yes" if all(map(is_verified, own)) else "no"}
        row["seeds"] = min(value for column, value in row.items() if column.endswith(".seeds"))
        state = states.get(base, {})
        row["suite_state_numbers"] = float(state.get("numbers", "nan"))
        row["suite_state_grows"] = {"yes": True, "no": False}.get(state.get("grows", ""))
        row["complexity"] = ATTENTIONS.get(base).complexity if base in ATTENTIONS else ""
        for resource, pattern in itertools.product(("time", "memory"), ("NS", "CS")):
            row[f"{pattern}.{resource}_8192_vs_softmax"] = cost[base, pattern].get(resource, math.nan)
        decoding = cost[base, "CS"]
        row["decode_ms_per_token"] = decoding.get("ms", math.nan)
        row["state_bytes"] = decoding.get("bytes", math.nan)
        row["constant_state"] = decoding.get("constant") if decoding.get("bytes") else None
    return pd.DataFrame(table).T


def test_every_column_of_the_csv_file_equals_a_recomputation() -> None:
    suite = suite_of(load_results(REFERENCE_DIRS))
    assert suite is not None
    written, expected = suite_csv(suite.board).set_index("attention"), recomputed()
    assert set(written.index) == set(expected.index)
    assert set(written.columns) == set(expected.columns)
    causal = written[written["CS.recall.K"].notna() & ~written.index.str.contains("[,=]")]
    assert causal["suite_state_numbers"].notna().all(), "run python -m tools.suite.tables"
    expected = expected.loc[written.index]
    for column in written.columns:
        own, other = written[column], expected[column]
        other = other.map(lambda value: FLAGS[bool(value)] if isinstance(value, (bool, np.bool_)) else value)
        is_text = own.map(lambda value: isinstance(value, (str, bool))).any()
        if is_text:
            assert own.fillna("").astype(str).tolist() == other.fillna("").astype(str).tolist(), column
        else:
            np.testing.assert_allclose(own.astype(float), other.astype(float), atol=1e-6, err_msg=column)
