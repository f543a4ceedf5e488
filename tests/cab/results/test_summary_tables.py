"""Tables 6 to 10 and 12, recomputed from the published raw metrics as if they were own results."""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from cab.cli.main import main
from cab.records.results import load_results
from cab.results.summary_tables import summary
from cab.results.table3 import side_by_side

PAPER = Path(__file__).parents[3] / "results" / "paper"


def rows_of(name: str) -> list[dict[str, str]]:
    with (PAPER / name).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def frame() -> Any:
    return side_by_side(load_results(PAPER))


@pytest.mark.parametrize(("table", "pattern"), [("7", "NS"), ("8", "CS"), ("9", "NC"), ("10", "CC")])
def test_means_and_deviations_over_attentions(table: str, pattern: str, frame: Any) -> None:
    """FlashAttention computes what softmax attention does, and is left out."""
    values: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows_of("results.csv"):
        if row["pattern"] == pattern and row["value"] and row["attention"] != "flash":
            key = tuple(row[name] for name in ("task", "backbone", "dataset", "metric"))
            values[key].append(float(row["value"]))
    printed = {
        tuple(row[name] for name in ("task", "backbone", "dataset", "metric")): row
        for row in rows_of("normalization.csv")
        if row["pattern"] == pattern
    }
    made = summary(frame, table).to_dict("records")
    assert len(made) == 2 * len(printed) == 2 * len(values)
    for row in made:
        key = tuple(row[name] for name in ("task", "backbone", "dataset", "metric"))
        compute = statistics.fmean if row["quantity"] == "mean" else statistics.stdev
        assert row["own"] == pytest.approx(compute(values[key]), rel=1e-9)
        assert row["published"] == float(printed[key][f"{row['quantity']}_table"])


def test_the_benefit_is_of_the_best_efficient_attention(frame: Any) -> None:
    index = {
        (row["task"], row["attention"]): row["own"]
        for row in frame[(frame["metric"] == "index") & (frame["pattern"] == "NS")].to_dict("records")
        if not math.isnan(row["own"])
    }
    made = {(row["task"], row["quantity"]): row for row in summary(frame, "12").to_dict("records")}
    assert {task for task, _ in made} == {row["task"] for row in rows_of("benefit_of_attention.csv")}
    for task in ("tts", "sum", "sr", "mlm"):
        efficient = {
            name: value for (of, name), value in index.items() if of == task and name not in ("vanilla", "flash")
        }
        best = max(efficient, key=lambda name: efficient[name])
        assert (made[task, "efficient"]["attention"], made[task, "efficient"]["own"]) == (best, efficient[best])
        assert made[task, "vanilla"]["own"] == index[task, "vanilla"]
        assert math.isnan(made[task, "without"]["own"]), "raw metrics are not published"
    assert made["tts", "without"]["published"] == -2.155


def test_the_index_of_each_task(frame: Any) -> None:
    made = summary(frame, "6")
    printed = [row for row in rows_of("compositional_index.csv") if row["task"] != "all"]
    assert len(made) == len(printed)
    wrong = made[made["difference"].abs() > 0.03]
    assert wrong[["pattern", "task", "attention"]].to_numpy().tolist() == [["CS", "lm", "abc"]], "a known contradiction"


@pytest.mark.parametrize("number", ["6", "7", "8", "9", "10", "12"])
@pytest.mark.parametrize("form", ["text", "csv", "markdown", "latex"])
def test_each_is_printed_without_results(number: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", f"table{number}", "--format", form]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 10
    assert (f"Table {number}: " in lines[0]) == (form != "csv")
