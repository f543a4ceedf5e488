"""Tasks outside the index: their tables, their figures, and their sections of the page."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cab.metric import Metric
from cab.results.load import load_results
from cab.results.sections import TaskSection, finished_runs
from tasks.glue.report import AVERAGED, SECTION as GLUE
from tasks.lra.report import SECTION as ARENA
from tasks.probe.report import SECTION as PROBES, capacity_curves, curve_figure
from tests.helpers.command import Command
from tests.helpers.page import page_of

START = "pretrained on wikitext103 for 50000 steps"
Add = Callable[..., Path]


def table_of(section: TaskSection, folder: Path, task: str) -> pd.DataFrame:
    results = load_results(folder)
    assert section.table(finished_runs(results.iloc[:0], task)).empty
    return section.table(finished_runs(results, task))


@pytest.fixture
def arena(tmp_path: Path, add: Add) -> Path:
    """ListOps: two attentions, one of two seeds; and once without brackets."""
    place = {"task": "lra", "dataset": "listops_synthetic", "config_variant": "", "backbone": "encoder"}
    baselines = {"majority": {"accuracy": 17.0}, "root_and_digits": {"accuracy": 48.0}}

    def measured(accuracy: float, **changes: Any) -> None:
        add({"accuracy": accuracy}, baselines=baselines, **{**place, "pattern": "NS", **changes})

    for seed in (1, 2):
        measured(50.0 + seed, attention="vanilla", seed=seed)
    measured(30.0, attention="local", seed=1)
    measured(20.0, attention="vanilla", seed=1, config_variant="brackets dropped")
    return tmp_path / "results"


def test_attentions_and_trivial_answers_are_in_one_order(arena: Path) -> None:
    table = table_of(ARENA, arena, "lra")
    whole = table[table["config_variant"] == ""]
    assert whole["name"].tolist() == ["vanilla", "root_and_digits", "local", "majority"]
    assert whole["kind"].tolist() == ["attention", "trivial", "attention", "trivial"]
    assert whole["accuracy"].tolist() == pytest.approx([51.5, 48.0, 30.0, 17.0])
    assert whole["deviation"].iloc[0] == pytest.approx(0.5**0.5)
    assert table[table["config_variant"] != ""]["name"].tolist() == ["root_and_digits", "vanilla", "majority"]


@pytest.fixture
def probes(tmp_path: Path, add: Add) -> Path:
    """Recall in CS: two attentions at three numbers of pairs, two seeds; one width more; and NC once."""
    baselines = {"commonest": {"accuracy": 0.05, "sequences": 0.0}}

    def measured(accuracy: float, pairs: int, width: int = 64, **changes: Any) -> None:
        place = {"task": "probe", "dataset": "recall", "config_variant": f"pairs {pairs}", "backbone": "mixer"}
        options = {"pairs": pairs, "distance": 8, "noise": 0.0}
        config = {"task": options, "backbone": {"embed_dim": width}, "trainer": {"max_steps": 300}}
        scores = {"accuracy": accuracy, "sequences": accuracy / 2}
        names = {"pattern": "CS", **place, **changes}
        add(scores, beside=["sequences"], baselines=baselines, config=config, **names)

    for pairs, linear in ((8, 1.0), (16, 0.9), (32, 0.4)):
        for seed in (1, 2):
            measured(1.0, pairs, attention="vanilla", seed=seed)
            measured(linear + 0.01 * seed, pairs, attention="linear", seed=seed)
    measured(0.3, 16, 16, attention="linear", seed=1)
    measured(1.0, 16, attention="vanilla", seed=1, pattern="NC")
    return tmp_path / "results"


def test_probes_have_a_row_per_setting_and_a_curve_where_all_else_is_equal(probes: Path) -> None:
    table = table_of(PROBES, probes, "probe")
    assert len(table) == 2 * 3 + 1 + 1
    row = table[(table["attention"] == "linear") & (table["pairs"] == 16) & (table["embed_dim"] == 64)].iloc[0]
    assert row["accuracy"] == pytest.approx(0.915)
    assert (row["seeds"], row["commonest"]) == (2, 0.05)
    assert list(table["pattern"].unique()) == ["CS", "NC"]
    curves = list(capacity_curves(table))
    assert [curve.knob for curve in curves] == ["pairs", "embed_dim"]
    assert curves[0].title == "CS, recall: accuracy against pairs; distance 8, width 64"
    assert set(curves[0].points["attention"]) == {"vanilla", "linear"}
    axes = curve_figure(curves[0]).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16", "32"]
    vanilla, linear = (line.get_ydata().tolist() for line in axes.lines[:2])
    assert vanilla == [1.0, 1.0, 1.0]
    assert linear == pytest.approx([1.015, 0.915, 0.415])


def test_probes_of_state_tracking_show_the_horizon(tmp_path: Path, add: Add) -> None:
    place = {"task": "probe", "dataset": "parity", "backbone": "mixer", "pattern": "CS", "attention": "gla"}
    config = {"task": {"pairs": 16}, "backbone": {"embed_dim": 32}, "trainer": {}}
    for seed, horizon in ((1, 10), (2, 20)):
        add({"horizon": horizon, "accuracy": 0.5}, beside=["accuracy"], config=config, seed=seed, **place)
    rows = table_of(PROBES, tmp_path / "results", "probe")
    [block] = PROBES.blocks(rows)
    [table] = block.tables
    shown = {column.label: column.cells[0].text for column in table.columns}
    assert shown == {"width": "32", "horizon": "15 ± 7.1", "accuracy": "0.5 ± 0", "seeds": "2"}


@pytest.fixture
def measure(tmp_path: Path, add: Add) -> Callable[..., None]:
    """A run of a data set of GLUE: its metrics as shares, up to ``held_out``; every one is a file of its own."""

    def measured(dataset: str, attention: str = "vanilla", seed: int = 1, start: str = START, **scores: float) -> None:
        metrics = [Metric(name, unit="", higher_is_better=True).measured(value) for name, value in scores.items()]
        variant = start if any(name.endswith("held_out") for name in scores) else f"{start}, chosen on dev"
        place = {"task": "glue", "dataset": dataset, "config_variant": variant, "backbone": "roberta_classifier"}
        config = {"trainer": {"learning_rate": 1e-5 * len(list((tmp_path / "results").glob("*.json")))}}
        add(metrics, **place, pattern="NS", attention=attention, seed=seed, preset="paper", config=config)

    return measured


def test_glue_has_the_best_rate_and_the_one_that_unscored_examples_choose(
    measure: Callable[..., None], tmp_path: Path
) -> None:
    for seed in (1, 2):
        measure("cola", seed=seed, matthews=0.40, matthews_held_out=0.5)
        measure("cola", seed=seed, matthews=0.45 + seed / 100, matthews_held_out=0.3)
    measure("mnli", accuracy=0.7, accuracy_mm=0.8, accuracy_held_out=0.1)
    measure("mnli", accuracy=0.6, accuracy_mm=0.9, accuracy_held_out=0.2)
    dev, held_out = table_of(GLUE, tmp_path / "results", "glue").to_dict("records")
    assert (dev["chosen_by"], held_out["chosen_by"]) == ("dev", "held_out")
    assert (dev["cola"], held_out["cola"]) == (pytest.approx(46.5), pytest.approx(40.0))
    assert (dev["mnli_m"], dev["mnli_mm"]) == (pytest.approx(70.0), pytest.approx(90.0))
    assert (held_out["mnli_m"], held_out["mnli_mm"]) == (pytest.approx(60.0), pytest.approx(90.0))
    assert (dev["seeds"], dev["settings"]) == (1, 2)
    assert math.isnan(dev["average"])


def test_the_mean_of_glue_is_of_the_seven_published_columns(measure: Callable[..., None], tmp_path: Path) -> None:
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
    for row in table_of(GLUE, tmp_path / "results", "glue").to_dict("records"):
        assert (row["chosen_by"], row["rte"], row["start"]) == ("dev", 50.0, START)
        assert row["average"] == pytest.approx(published[row["attention"]][-1], abs=0.005)


@pytest.mark.usefixtures("arena")
def test_the_page_has_a_section_per_task_and_the_index_has_nothing_of_them(
    probes: Path, measure: Callable[..., None], add: Add, tmp_path: Path, cab: Command
) -> None:
    measure("synthetic", start="from scratch", accuracy=0.5, accuracy_held_out=0.4)
    measure("synthetic", accuracy=0.9, accuracy_held_out=0.8)
    out = tmp_path / "board"
    page, elements = page_of(probes, out)
    ids = {attributes.get("id") for _, attributes in elements.found}
    assert {"lra", "lra-0", "lra-1", "glue", "glue-0", "probes", "probe-0"} <= ids
    assert "root and digits" in page
    tables = {path.stem: list(csv.DictReader(path.open())) for path in out.glob("*.csv")}
    assert len({row["hash"] for row in tables.pop("records")}) == 4 + 14 + 2
    assert {name: len(rows) for name, rows in tables.items()} == {"lra": 7, "probes": 8, "glue": 4}
    assert [(row["start"], row["chosen_by"], row["synthetic"]) for row in tables["glue"]] == [
        ("from scratch", "dev", "50.0"),
        ("from scratch", "held_out", "50.0"),
        (START, "dev", "90.0"),
        (START, "held_out", "90.0"),
    ]
    refusal = cab("score", probes, "--score", "index", status=2).err
    assert "no score: generated data outside the cells of the suite" in refusal
    for attention in ("vanilla", "linear"):
        add({"mse": 1.0 + len(attention)}, attention=attention)
    assert "probe" not in cab("score", probes, "--score", "index", "--csv").out
