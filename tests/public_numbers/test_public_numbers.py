"""Outputs, gradients and initial parameters of public code, computed once and stored in golden files."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cab.registry.registries import ATTENTIONS
from tests.public_numbers.golden import FOLDER, Golden

FILES = sorted(FOLDER.glob("*.npz"))
MAX_BYTES = 50_000
START = 0.05
"""Largest difference between quantiles of initial parameters, relative to their range."""


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_numbers_are_those_of_public_code(path: Path) -> None:
    golden = Golden.read(path)
    if "output" in golden.arrays:
        found, limit = golden.distances(), golden.about["tolerance"]
    else:
        found, limit = golden.start_distances(), START
    assert max(found.values()) < limit, f"{golden.about['source']}: {found}"


def test_every_attention_is_compared_or_has_a_reason() -> None:
    compared = {Golden.read(path).about["attention"] for path in FILES if not path.stem.endswith("_start")}
    with (FOLDER / "uncompared.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    reasons = {row["attention"]: row["reason"] for row in rows}
    assert len(reasons) == len(rows)
    assert all(reasons.values())
    assert not compared & set(reasons)
    assert compared | set(reasons) == set(ATTENTIONS.names())


def test_files_are_small_and_tolerances_have_reasons() -> None:
    for path in FILES:
        about = Golden.read(path).about
        assert path.stat().st_size <= MAX_BYTES
        assert about["source"]
        if "tolerance" in about:
            assert about["tolerance"] <= 1e-9 or (about["reason"] and about["tolerance"] <= 1e-6), path.name
