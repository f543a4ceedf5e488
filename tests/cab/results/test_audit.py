"""The audit of the published tables, and the interval arithmetic that it rests on."""

from __future__ import annotations

import pandas as pd
import pytest

from cab.results.audit import audit

AGREES, ROUNDING, CONTRADICTS, UNKNOWN = "agrees", "explained by rounding", "contradicts", "cannot be recomputed"


@pytest.fixture(scope="module")
def official() -> pd.DataFrame:
    return audit()


COUNTS = {
    "3": {AGREES: 15, ROUNDING: 7},
    "6": {AGREES: 58, ROUNDING: 16},
    "7": {AGREES: 14, ROUNDING: 6},
    "8": {AGREES: 1, ROUNDING: 1, CONTRADICTS: 10},
    "9": {AGREES: 13, ROUNDING: 5},
    "10": {AGREES: 9, ROUNDING: 1},
    "script": {CONTRADICTS: 1},
    "11": {AGREES: 4, ROUNDING: 2, UNKNOWN: 30},
    "12": {AGREES: 5, ROUNDING: 2, CONTRADICTS: 1, UNKNOWN: 9},
}
"""Verdicts of tables; tests/golden has every row that `cab paper audit` prints."""


def test_every_printed_number_has_a_verdict(official: pd.DataFrame) -> None:
    counts = {table: rows["verdict"].value_counts().to_dict() for table, rows in official.groupby("table")}
    assert counts == COUNTS
    known = official[official["verdict"] != UNKNOWN]
    assert (known["low"] <= known["recomputed"]).all()
    assert (known["recomputed"] <= known["high"]).all()
    assert official.loc[official["verdict"] == UNKNOWN, ["recomputed", "low", "high"]].isna().all().all()


def test_every_contradicting_constant_of_table_8_has_its_cause(official: pd.DataFrame) -> None:
    rows = official[(official["table"] == "8") & (official["verdict"] == CONTRADICTS)].set_index("task")
    assert rows["note"].str.startswith("agrees when ").all()
    of_lm = rows.loc[[f"lm gpt2 pg19 ppl {name}" for name in ("mean", "std")]]
    assert of_lm["recomputed"].round(3).tolist() == [20.64, 7.511], "without FlashAttention, as in Appendix E"
    assert set(of_lm["note"]) == {"agrees when s4d is excluded"}, "with 31.53 for ABC"
