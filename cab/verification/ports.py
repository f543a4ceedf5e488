"""Comparison of a port with golden vectors: the stages that differ, and those that are missing.

A port computes the vectors from ``inputs/...`` and ``weights/...``, under the same names. Their order is that of the
computation, so the first one that differs names the fault.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cab.errors import UserError
from cab.verification.vectors import safetensors


@dataclass(frozen=True)
class Comparison:
    """One vector of the manifest, and what is wrong with that of a port (empty: nothing)."""

    name: str
    meaning: str
    fault: str
    is_missing: bool = False


def compare(manifest: Path, port: Path) -> list[Comparison]:
    """Return the comparisons of all vectors that a port computes, in the order of the computation.

    Raises:
        UserError: a file is missing or damaged, or the port has no vector of the manifest, or an unknown one.
    """
    listed = json.loads(manifest.read_text(encoding="utf-8"))
    expected, found = (_load(path) for path in (manifest.with_suffix(".safetensors"), port))
    rows = {row["name"]: row for row in listed["vectors"] if not row["name"].startswith(("inputs/", "weights/"))}
    if unknown := sorted(found.keys() - expected.keys()):
        raise UserError(f"{port}: {manifest} has no vector '{unknown[0]}'")
    if rows.keys().isdisjoint(found):
        raise UserError(f"{port}: no vector of {manifest} that a port computes, such as whole/output")
    comparisons = []
    for name, row in rows.items():
        fault = _fault(found[name], expected[name], listed["tolerance"], row) if name in found else "missing"
        comparisons.append(Comparison(name, row["meaning"], fault, name not in found))
    return comparisons


def _fault(found: np.ndarray, expected: np.ndarray, tolerances: Mapping[str, float], row: Mapping[str, Any]) -> str:
    """Return the largest error, its first place, and an order of the dimensions that would agree; empty if equal."""
    if found.shape != expected.shape:
        return f"shape {found.shape}, not {expected.shape}"
    tolerance, errors = tolerances.get(str(found.dtype), tolerances["float64"]), _errors(found, expected)
    wrong = errors > tolerance
    if not wrong.any():
        return ""
    places, axes = np.argwhere(wrong), row["layout"].split()
    place = f"at {places[0].tolist()}"
    if "N" in axes:
        token = int(places[:, axes.index("N")].min())
        place = f"at token {token}"
        if "calls" in row:
            place += f", call {int(np.searchsorted(np.cumsum(row['calls']), token, side='right'))}"
    reordered = {order: found.transpose(order) for order in itertools.permutations(range(found.ndim))}
    agreeing = [
        order
        for order, x in reordered.items()
        if x.shape == expected.shape and _errors(x, expected).max(initial=0.0) <= tolerance
    ]
    hint = f"; equal if its dimensions are reordered as {agreeing[0]}" if agreeing else ""
    return f"error {errors.max():.2g}, first {place} (counted from 0){hint}"


def _errors(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return errors relative to one plus the expected size: zero for equal infinities, and infinite for NaN."""
    x, y = found.astype(float), expected.astype(float)
    with np.errstate(invalid="ignore"):
        errors = np.where(x == y, 0.0, np.abs(x - y) / (1.0 + np.abs(y)))
    return np.nan_to_num(errors, nan=np.inf)


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        return safetensors().load_file(path)
    except Exception as error:
        raise UserError(f"cannot read the vectors {path}: {error}") from error
