"""Outputs, gradients and initial parameters of public code, computed once and stored in golden files."""

from __future__ import annotations

import csv

import pytest

from cab.registry.registries import ATTENTIONS
from tests.helpers.golden_numbers import FOLDER, Golden, cases

CASES = cases()
START = 0.05
"""Largest difference between quantiles of initial parameters, relative to their range."""


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_those_of_public_code(case: str) -> None:
    golden = Golden.read(CASES[case], case)
    assert golden.about["source"]
    assert golden.about["attention"] == CASES[case].stem
    if "output" in golden.arrays:
        distances, limit = golden.distances(), golden.about["tolerance"]
        assert limit <= 1e-9 or (golden.about["reason"] and limit <= 1e-6)
    else:
        distances, limit = golden.start_distances(), START
    assert max(distances.values()) < limit, f"{golden.about['source']}: {distances}"


def test_every_attention_is_compared_or_has_a_reason() -> None:
    compared = {path.stem for case, path in CASES.items() if not case.endswith("_start")}
    reasons = {row["attention"]: row["reason"] for row in csv.DictReader((FOLDER / "uncompared.csv").open())}
    assert all(reasons.values())
    assert not compared & set(reasons)
    missing = set(ATTENTIONS.names()) - compared - set(reasons)
    assert not missing, f"add golden numbers (tools/README.md) or a reason in {FOLDER / 'uncompared.csv'}"
    assert compared | set(reasons) <= set(ATTENTIONS.names())
