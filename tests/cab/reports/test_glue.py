"""GLUE's table: seven columns and their mean, with the rate chosen on the scored examples and on others."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from cab.metric import Metric
from cab.records.record import Status
from cab.records.results import load_results
from cab.reports.sections import finished_runs
from tasks.glue.report import AVERAGED, glue_table
from tests.cab.reports.test_page import page_of

START = "pretrained on wikitext103 for 50000 steps"


@pytest.fixture
def measure(tmp_path: Path, add: Callable[..., Path]) -> Callable[..., None]:
    """A run of a data set: its metrics as shares, up to ``held_out``; every one is a file of its own."""

    def measured(dataset: str, attention: str = "vanilla", seed: int = 1, start: str = START, **scores: float) -> None:
        metrics = [Metric(name, unit="", higher_is_better=True).measured(value) for name, value in scores.items()]
        config_variant = start if any(name.endswith("held_out") for name in scores) else f"{start}, chosen on dev"
        place = {"task": "glue", "dataset": dataset, "config_variant": config_variant, "backbone": "roberta_classifier"}
        config = {"trainer": {"learning_rate": 1e-5 * len(list((tmp_path / "results").glob("*.json")))}}
        add(metrics, **place, pattern="NS", attention=attention, seed=seed, preset="paper", config=config)

    return measured


def test_the_best_rate_and_the_one_that_unscored_examples_choose(measure: Callable[..., None], tmp_path: Path) -> None:
    for seed in (1, 2):
        measure("cola", seed=seed, matthews=0.40, matthews_held_out=0.5)
        measure("cola", seed=seed, matthews=0.45 + seed / 100, matthews_held_out=0.3)
    measure("mnli", accuracy=0.7, accuracy_mm=0.8, accuracy_held_out=0.1)
    measure("mnli", accuracy=0.6, accuracy_mm=0.9, accuracy_held_out=0.2)
    dev, held_out = glue_table(finished_runs(load_results(tmp_path / "results"), "glue")).to_dict("records")
    assert (dev["chosen_by"], held_out["chosen_by"]) == ("dev", "held_out")
    assert (dev["cola"], held_out["cola"]) == (pytest.approx(46.5), pytest.approx(40.0))
    assert (dev["mnli_m"], dev["mnli_mm"]) == (pytest.approx(70.0), pytest.approx(90.0))
    assert (held_out["mnli_m"], held_out["mnli_mm"]) == (pytest.approx(60.0), pytest.approx(90.0))
    assert (dev["seeds"], dev["settings"]) == (1, 2)
    assert math.isnan(dev["average"])


def test_the_mean_is_of_the_seven_published_columns(measure: Callable[..., None], tmp_path: Path) -> None:
    """Those of vanilla and Transformer-LS in the paper's Table 5; nothing else counts, and nothing missing is 0."""
    published = {
        "vanilla": (79.37, 79.07, 87.79, 88.04, 90.25, 88.35, 38.63, 78.79),
        "longshort": (77.01, 76.78, 84.86, 86.85, 90.25, 82.65, 40.65, 77.01),
    }
    for attention, numbers in published.items():
        values = dict(zip(AVERAGED, (number / 100 for number in numbers), strict=False))
        measure("mnli", attention, accuracy=values["mnli_m"], accuracy_mm=values["mnli_mm"])
        for name in ("qnli", "qqp", "sst2"):
            measure(name, attention, accuracy=values[name])
        measure("mrpc", attention, f1=values["mrpc"], accuracy=0.1)
        measure("cola", attention, matthews=values["cola"])
        measure("rte", attention, accuracy=0.5)
    table = glue_table(finished_runs(load_results(tmp_path / "results"), "glue"))
    assert list(table["chosen_by"]) == ["dev", "dev"]
    for row in table.to_dict("records"):
        assert row["average"] == pytest.approx(published[row["attention"]][-1], abs=0.005)
        assert row["rte"] == 50.0
        assert row["start"] == START


def test_the_leaderboard_has_a_section_and_a_file(
    measure: Callable[..., None], add: Callable[..., Path], tmp_path: Path
) -> None:
    measure("synthetic", start="from scratch", accuracy=0.5, accuracy_held_out=0.4)
    measure("synthetic", accuracy=0.9, accuracy_held_out=0.8)
    add(
        {"accuracy": None},
        task="glue",
        dataset="rte",
        config_variant="from scratch",
        status=Status.FAILED,
        hash="e" * 16,
    )
    _, elements = page_of(tmp_path / "results", tmp_path / "board")
    ids = {attributes.get("id") for _, attributes in elements.found}
    assert {"glue", "glue-0"} <= ids
    assert "probes" not in ids
    assert not (tmp_path / "board/probes.csv").exists()
    with (tmp_path / "board/glue.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["start"], row["chosen_by"], row["synthetic"]) for row in rows] == [
        ("from scratch", "dev", "50.0"),
        ("from scratch", "held_out", "50.0"),
        (START, "dev", "90.0"),
        (START, "held_out", "90.0"),
    ]
