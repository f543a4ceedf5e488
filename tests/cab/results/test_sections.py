"""Tasks outside the index: their tables, their figures, and their sections of the page."""

import itertools
import math
from pathlib import Path

import pandas as pd
import pytest

from cab.metric import Metric
from cab.results.load import load_results
from cab.results.sections import TaskSection, finished_runs
from tasks.glue.report import AVERAGED, SECTION as GLUE
from tasks.lra.report import SECTION as ARENA
from tasks.probe.report import SECTION as PROBES, capacity_curves, curve_figure
from tests.helpers.made_records import make_record

START = "pretrained on wikitext103 for 50000 steps"


def table_of(section: TaskSection, folder: Path, task: str) -> pd.DataFrame:
    results = load_results(folder)
    assert section.table(finished_runs(results.iloc[:0], task)).empty
    return section.table(finished_runs(results, task))


def test_attentions_and_trivial_answers_are_in_one_order(tmp_path):
    """ListOps: two attentions, one of two seeds; and once without brackets."""
    place = {"task": "lra", "dataset": "listops_synthetic", "backbone": "encoder", "pattern": "NS"}
    baselines = {"majority": {"accuracy": 17.0}, "root_and_digits": {"accuracy": 48.0}}
    runs = (("vanilla", "", 1, 51.0), ("vanilla", "", 2, 52.0), ("local", "", 1, 30.0))
    for name, variant, seed, accuracy in (*runs, ("vanilla", "brackets dropped", 1, 20.0)):
        names = {"attention": name, "config_variant": variant, "seed": seed}
        make_record({"accuracy": accuracy}, baselines=baselines, **place, **names).write(tmp_path)
    table = table_of(ARENA, tmp_path, "lra")
    whole = table[table["config_variant"] == ""]
    assert whole["name"].tolist() == ["vanilla", "root_and_digits", "local", "majority"]
    assert whole["kind"].tolist() == ["attention", "trivial", "attention", "trivial"]
    assert whole["accuracy"].tolist() == pytest.approx([51.5, 48.0, 30.0, 17.0])
    assert whole["deviation"].iloc[0] == pytest.approx(0.5**0.5)
    assert table[table["config_variant"] != ""]["name"].tolist() == ["root_and_digits", "vanilla", "majority"]
    [shown] = next(iter(ARENA.blocks(table))).tables
    assert [cell.text for cell in shown.columns[1].cells] == ["51.5 ± 0.71", "48", "30", "17"]


def test_probes_have_a_row_per_setting_and_a_curve_where_all_else_is_equal(tmp_path):
    """Two attentions at three numbers of pairs, two seeds, and one width more."""
    place = {"task": "probe", "dataset": "recall", "backbone": "mixer", "pattern": "CS"}
    baselines = {"commonest": {"accuracy": 0.05, "sequences": 0.0}}
    shares = {(8, 64): 1.0, (16, 64): 0.9, (32, 64): 0.4, (16, 16): 0.3}
    for ((pairs, width), linear), seed in itertools.product(shares.items(), (1, 2)):
        options = {"pairs": pairs, "distance": 8, "noise": 0.0}
        config = {"task": options, "backbone": {"embed_dim": width}, "trainer": {"max_steps": 300}}
        for name, accuracy in {"vanilla": 1.0, "linear": linear + 0.01 * seed}.items():
            scores = {"accuracy": accuracy, "sequences": accuracy / 2}
            names = {**place, "config_variant": f"pairs {pairs}", "attention": name, "seed": seed}
            make_record(scores, unscored=["sequences"], baselines=baselines, config=config, **names).write(tmp_path)
    table = table_of(PROBES, tmp_path, "probe")
    assert len(table) == 8
    row = table[(table["attention"] == "linear") & (table["pairs"] == 16) & (table["embed_dim"] == 64)].iloc[0]
    assert row[["accuracy", "seeds", "commonest"]].tolist() == pytest.approx([0.915, 2, 0.05])
    curve, other = capacity_curves(table)
    assert (curve.knob, other.knob) == ("pairs", "embed_dim")
    vanilla, linear_line = (line.get_ydata().tolist() for line in curve_figure(curve).axes[0].lines[:2])
    assert vanilla == [1.0, 1.0, 1.0]
    assert linear_line == pytest.approx([1.015, 0.915, 0.415])


def measure(folder: Path, dataset: str, attention: str = "vanilla", seed: int = 1, **scores: float) -> None:
    """Write a run of a data set of GLUE: its metrics as shares, up to ``held_out``; every one has a rate of its own."""
    metrics = [Metric(name, unit="", higher_is_better=True).measured(value) for name, value in scores.items()]
    variant = START if any(name.endswith("held_out") for name in scores) else f"{START}, chosen on dev"
    place = {"task": "glue", "dataset": dataset, "config_variant": variant, "backbone": "roberta_classifier"}
    config = {"trainer": {"learning_rate": 1e-5 * len(list(folder.glob("*.json")))}}
    about = {"pattern": "NS", "attention": attention, "seed": seed, "preset": "paper", "config": config}
    make_record(metrics, **place, **about).write(folder)


def test_glue_has_the_best_rate_and_the_one_that_unscored_examples_choose(tmp_path):
    for seed in (1, 2):
        measure(tmp_path, "cola", seed=seed, matthews=0.40, matthews_held_out=0.5)
        measure(tmp_path, "cola", seed=seed, matthews=0.45 + seed / 100, matthews_held_out=0.3)
    measure(tmp_path, "mnli", accuracy=0.7, accuracy_mm=0.8, accuracy_held_out=0.1)
    measure(tmp_path, "mnli", accuracy=0.6, accuracy_mm=0.9, accuracy_held_out=0.2)
    dev, held_out = table_of(GLUE, tmp_path, "glue").to_dict("records")
    assert (dev["chosen_by"], held_out["chosen_by"]) == ("dev", "held_out")
    assert [dev[name] for name in ("cola", "mnli_m", "mnli_mm")] == pytest.approx([46.5, 70.0, 90.0])
    assert [held_out[name] for name in ("cola", "mnli_m", "mnli_mm")] == pytest.approx([40.0, 60.0, 90.0])
    assert (dev["seeds"], dev["settings"]) == (1, 2)
    assert math.isnan(dev["average"])
    [block] = GLUE.blocks(table_of(GLUE, tmp_path, "glue"))
    assert "46.50" in block.tables[0].to_text()


def test_the_mean_of_glue_is_of_the_seven_published_columns(tmp_path):
    """Those of vanilla and Transformer-LS in the paper's Table 5; nothing else counts, and nothing missing is 0."""
    published = {
        "vanilla": (79.37, 79.07, 87.79, 88.04, 90.25, 88.35, 38.63, 78.79),
        "longshort": (77.01, 76.78, 84.86, 86.85, 90.25, 82.65, 40.65, 77.01),
    }
    for attention, numbers in published.items():
        values = dict(zip(AVERAGED, (number / 100 for number in numbers), strict=False))
        measure(tmp_path, "mnli", attention, accuracy=values["mnli_m"], accuracy_mm=values["mnli_mm"])
        for name in ("qnli", "qqp", "sst2"):
            measure(tmp_path, name, attention, accuracy=values[name])
        measure(tmp_path, "mrpc", attention, f1=values["mrpc"], accuracy=0.1)
        measure(tmp_path, "cola", attention, matthews=values["cola"])
        measure(tmp_path, "rte", attention, accuracy=0.5)
    for row in table_of(GLUE, tmp_path, "glue").to_dict("records"):
        assert (row["chosen_by"], row["rte"], row["start"]) == ("dev", 50.0, START)
        assert row["average"] == pytest.approx(published[row["attention"]][-1], abs=0.005)
