"""`cab paper TABLE`: the published and the own values of every table are read and recomputed here by other code."""

import itertools
import math
import random
import re
import statistics
from collections import defaultdict
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cab.records.record import RunCost
from cab.results import paper_values
from cab.results.comparison import compared
from cab.results.load import OWN, load_results
from cab.results.published import paper_tables, published_values, rows as rows_of
from tests.helpers.made_records import make_record

ROOT = Path(__file__).parents[3]
PAPER = ROOT / "results" / "paper"
TABLES = paper_tables()
JOINED = {name: table for name, table in TABLES.items() if table.keys}
TERM = ("pattern", "task", "backbone", "dataset", "metric")
ARENA = {"task": "lra", "config_variant": "", "backbone": "encoder", "pattern": "NS"}
AS_CSV = ("--format", "csv")


PARAMETERS = rows_of("parameters_reproduced.csv")
COUNTS = {(row["pattern"], row["backbone"], row["attention"]): int(row["params"]) for row in PARAMETERS}


def marks_of(name: str) -> tuple[Any, ...]:
    """Table 5 has a configuration for every attention."""
    return (pytest.mark.slow,) if name == "table5" else ()


def of_source(source: str) -> list[Any]:
    found = {name: table for name, table in TABLES.items() if table.source == source}
    return [pytest.param(table, id=name, marks=marks_of(name)) for name, table in found.items()]


@pytest.fixture(scope="module")
def published():
    """The raw metrics of Table 3, as if they were own results."""
    frame = load_results(PAPER / "results.csv").assign(source=OWN)
    return frame[frame["value"].notna()]


@pytest.fixture
def _counts(monkeypatch):
    """Replace the counting of parameters, which tests/backbones/test_backbones_parameters.py tests, by its results."""
    monkeypatch.setattr(paper_values, "count_parameters", lambda *cell: COUNTS.get(cell))


@pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in JOINED.items()])
def test_the_published_values_are_those_of_the_file(table):
    expected = []
    for row in itertools.chain.from_iterable(map(rows_of, table.file.split())):
        if all(row[pair.split("=")[0]] == pair.split("=")[1].replace("_", " ") for pair in table.where.split()):
            for value in table.values.split():
                column, _, name = value.partition(":")
                quantity = [name or column] if " " in table.values else []
                expected.append([*(row[key] for key in table.keys.split()), *quantity, row[column]])
    made = published_values(table)
    assert made.to_numpy().tolist() == expected
    assert len(made) >= 3
    assert not made.drop(columns="published").duplicated().any(), "keys identify a value"
    assert any(made["published"] != "")


SELECTING = ("table15", "figure3c", "transnormer1", "transnormer4", "transnormer5", "lra", "informer")
"""Tables of records; the others select by the options of an attention, as transnormer1 does."""


@pytest.mark.parametrize("table", [TABLES[name] for name in SELECTING], ids=SELECTING)
def test_own_values_are_means_over_the_selected_runs(table, tmp_path, cab):
    """Two seeds of some runs that the table selects, and runs with another setting, metric, data set or attention."""
    random.seed(table.name)
    expected: dict[tuple[str, ...], list[float]] = {}
    runs: dict[tuple[tuple[str, str], ...], dict[str, list[float]]] = defaultdict(dict)
    keys: dict[tuple[tuple[str, str], ...], list[tuple[str, ...]]] = defaultdict(list)
    rows = published_values(table).to_dict("records")
    for row in rows:
        options = re.sub(r"\battention=\[?([^\] ]+)\]?", r"attention.name=\1", row.get("options", ""))
        pairs = (pair.partition("=")[::2] for pair in table.select.format(**{**row, "options": options}).split())
        wanted = {name: value for name, value in pairs if value}
        values = [random.uniform(1, 9) for _ in range(2)]
        if not (metric := wanted.pop("metric", "")):
            continue
        run = tuple(sorted(wanted.items()))
        values = runs[run].setdefault(metric, values)
        keys[run].append(tuple(value for name, value in row.items() if name != "published"))
        expected[keys[run][-1]] = values
    written = random.sample(sorted(runs), min(9, len(runs)))
    for run in written:
        write_runs(tmp_path, dict(run), runs[run])
    expected = {key: expected[key] for run in written for key in keys[run]}
    write_runs(tmp_path, {"task": "probe", "dataset": "recall", "attention": "vanilla"}, {"accuracy": [1.0, 2.0]})
    shown = cab("paper", table.name, tmp_path, *AS_CSV).rows
    scale = float(table.scale or 1)
    assert len(shown) == len(rows)
    for row in shown:
        key = tuple(row[name] for name in (*table.keys.split(), *(["quantity"] if "quantity" in row else [])))
        values = expected.get(key, [])
        assert row["runs"] == str(len(values))
        assert (row["own"] != "") == bool(values)
        if values:
            own = scale * statistics.fmean(values)
            assert float(row["own"]) == pytest.approx(own, abs=1e-6)
            assert float(row["sd"]) == pytest.approx(scale * statistics.stdev(values), abs=1e-6)
            assert row["settings"] == "preset=mini"
            if row["published"]:
                assert float(row["difference"]) == pytest.approx(own - float(row["published"]), abs=2e-6)


def write_runs(folder: Path, wanted: dict[str, str], metrics: dict[str, list[float]]) -> None:
    cell = {"task": "lm", "dataset": "pg19", "config_variant": "", "backbone": "gpt2", "pattern": "NS"}
    cell |= {"attention": wanted.get("attention.name", "vanilla")}
    cell |= {name: value for name, value in wanted.items() if "." not in name}
    config = {}
    for path, value in wanted.items():
        *groups, name = path.split(".")
        if groups:
            reduce(lambda inner, group: inner.setdefault(group, {}), groups, config)[name] = value
    for seed in (0, 1):
        cost = {"hours": 3.0, "params_millions": 7.0} | {name: values[seed] for name, values in metrics.items()}
        scores = {name: value for name, value in cost.items() if name not in ("hours", "params_millions")} or {"x": 1.0}
        costs = RunCost(train_seconds=3600 * cost["hours"], params=round(1e6 * cost["params_millions"]))
        make_record(scores, **cell, seed=seed, config=config, cost=costs).write(folder)


def test_generated_data_replace_the_published_ones_in_a_rehearsal(tmp_path, cab):
    mine, smoke, real = "mine(heads=2, window_size=4)", tmp_path / "smoke", tmp_path / "paper"
    for dataset, attention in (("listops_synthetic", "vanilla"), ("text_synthetic", mine)):
        run = {**ARENA, "dataset": dataset, "attention": attention, "verified": attention == "vanilla"}
        make_record({"accuracy": 40.0}, **run, preset="smoke").write(smoke)
    make_record({"accuracy": 40.0}, **ARENA, dataset="text", preset="paper").write(real)
    output = cab("paper", "transnormer6", smoke)
    assert "rehearsal on generated data" in output.out.splitlines()[0]
    assert "has not passed `cab verify`" in output.err

    def own_of(rows: list[dict[str, str]]) -> list[tuple[str, ...]]:
        return [(row["attention"], row["quantity"], row["data"]) for row in rows if row["own"]]

    shown = cab("paper", "transnormer6", smoke, *AS_CSV).rows
    assert own_of(shown) == [("vanilla", "listops", "rehearsal"), (mine, "text", "rehearsal")]
    assert shown[-1]["attention"] == mine, "attentions that are not published follow"
    assert shown[-1]["published"] == ""
    assert own_of(cab("paper", "transnormer6", smoke, real, *AS_CSV).rows) == [("vanilla", "text", "real")]


def test_stored_means_of_long_range_arena_are_apart_from_the_published_values(cab):
    _, _, own = cab("paper", "lra", ROOT / "results/lra").out.partition("\n\n")
    assert "1 to 3 seeds: not comparable with the published values" in own.splitlines()[0]
    lines = [line.split() for line in own.splitlines()[2:]]
    assert ["vanilla", "lra", "listops_synthetic", "accuracy", "42.667", "±", "0.61", "3"] in lines
    assert ["skyformer", "lra", "text_synthetic", "accuracy", "97.4", "1"] in lines
    assert len(lines) == 41, "without the trivial baselines"
    assert not any(row["own"] for row in cab("paper", "lra", ROOT / "results/lra", *AS_CSV).rows)


@pytest.mark.parametrize("table", ["lra", "table3"])
def test_results_on_generated_data_are_apart(table, tmp_path, cab):
    arena = {**ARENA, "dataset": "text_synthetic"}
    series = {"task": "lstf", "dataset": "synthetic", "config_variant": "", "backbone": "informer", "pattern": "NC"}
    for seed, value in enumerate((0.4, 0.6)):
        for cell, metric in ((arena, "accuracy"), (series, "mse")):
            make_record({metric: value}, **cell, preset="mini", seed=seed).write(tmp_path)
    output = cab("paper", table, tmp_path, *AS_CSV)
    assert not any(row["own"] for row in output.rows)
    assert "preset mini on generated data, 2 seeds: not comparable with the published values" in output.err


@pytest.mark.parametrize("name", ["table3", "figure3c"])
def test_published_results_are_never_own_values(name, published):
    """In Table 3, from which other tables follow, and among records."""
    table = TABLES[name]
    paper = load_results(PAPER)
    assert compared(table, paper)["own"].isna().all()
    both = pd.concat([published, paper], ignore_index=True)
    pd.testing.assert_frame_equal(compared(table, both), compared(table, published))


@pytest.mark.parametrize("table", of_source("scales"))
def test_means_and_deviations_over_attentions(table, published):
    """FlashAttention computes what softmax attention does, and is left out."""
    values: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows_of("results.csv"):
        if row["value"] and row["attention"] != "flash":
            values[tuple(row[name] for name in TERM)].append(float(row["value"]))
    made = compared(table, published).to_dict("records")
    for row in made:
        compute = statistics.fmean if row["quantity"] == "mean" else statistics.stdev
        assert row["own"] == pytest.approx(compute(values[tuple(row[name] for name in TERM)]), rel=1e-9)
        assert row["difference"] == row["own"] - float(row["published"])


def test_the_benefit_is_of_the_best_efficient_attention(published):
    all_indices = compared(TABLES["table6"], published).dropna(subset=["own"])
    of_table3 = compared(TABLES["table3"], published).query("metric == 'index' and task != 'all'")
    assert all_indices["own"].tolist() == of_table3["own"].dropna().tolist()
    indices = all_indices.query("pattern == 'NS'")
    made = {(row["task"], row["quantity"]): row for row in compared(TABLES["table12"], published).to_dict("records")}
    for task in ("tts", "sum", "sr", "mlm"):
        index = indices[indices["task"] == task].set_index("attention")["own"].to_dict()
        vanilla = index.pop("vanilla")
        best = max(index.keys() - {"flash"}, key=lambda name: index[name])
        assert (made[task, "efficient"]["best"], made[task, "efficient"]["own"]) == (best, index[best])
        assert made[task, "vanilla"]["own"] == vanilla
        assert math.isnan(made[task, "without"]["own"]), "raw metrics are not published"


def pearson(a: dict[str, float], b: dict[str, float], *, least: int) -> float:
    shared = sorted(a.keys() & b.keys())
    return np.corrcoef([[x[name] for name in shared] for x in (a, b)])[0, 1] if len(shared) >= least else math.nan


@pytest.mark.parametrize("table", of_source("correlations"))
def test_correlations_of_own_indices(table, published):
    own: dict[str, dict[str, float]] = defaultdict(dict)
    for row in compared(TABLES["table3"], published).to_dict("records"):
        if row["metric"] == "index" and row["attention"] != "flash":
            name = row["pattern"] if row["task"] == "all" else f"{row['pattern']} {row['task']}"
            own[name] |= {} if math.isnan(row["own"]) else {row["attention"]: row["own"]}
    for row in rows_of("lra.csv"):
        own["LRA"][row["attention"]] = statistics.fmean(float(row[name]) for name in [*row][1:])
    frame = compared(table, published)
    assert len(frame) == {"figure3a": 10, "figure4": 120}[table.name]
    for row in frame.to_dict("records"):
        assert row["own"] == pytest.approx(pearson(own[row["a"]], own[row["b"]], least=3), nan_ok=True)


def test_most_colors_of_figure_4_are_the_correlations_of_table_6():
    """36 of the 55 pairs without LRA to 0.03; the others show indices that were given to failed runs."""
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows_of("compositional_index.csv"):
        if row["task"] != "all" and row["index"] and row["attention"] not in ("flash", "none"):
            values[f"{row['pattern']} {row['task']}"][row["attention"]] = float(row["index"])
    printed = [row for row in rows_of("correlations.csv") if row["figure"] == "figure4"]
    of_tasks = [row for row in printed if "LRA" not in row["a"] + row["b"]]
    found = [pearson(values[row["a"]], values[row["b"]], least=2) - float(row["pearson"]) for row in of_tasks]
    assert (sum(abs(difference) <= 0.03 for difference in found), len(found)) == (36, 55)


@pytest.mark.parametrize("table", of_source("costs"))
def test_own_costs(table, tmp_path, cab):
    """A file with every published value, twice as large, in the units of `cab efficiency`."""
    lines = ["attention,pattern,phase,length,seconds,bytes"]
    units = {"time_ms": 1e-3, "memory_mib": 2.0**20, "steps_per_second": 1.0}
    rows = published_values(table).to_dict("records")
    for row in rows:
        value = 2 * float(row["published"]) * units[table.values]
        value = 1 / value if table.values == "steps_per_second" else value
        cost = f"1,{value}" if table.values == "memory_mib" else f"{value},1"
        lines.append(f"{row['attention']},NS,{row.get('phase', 'forward')},{row['length']},{cost}")
    path = tmp_path / "costs.csv"
    path.write_text("\n".join([*lines, "none,NS,forward,256,1,1", "vanilla,CS,forward,256,5,5", ""]))
    shown = cab("paper", table.name, path, *AS_CSV).rows
    assert len(shown) == len(rows)
    for row in shown:
        assert float(row["own"]) == pytest.approx(2 * float(row["published"]), rel=1e-5)
        assert float(row["difference"]) == pytest.approx(float(row["published"]), rel=1e-4)
    assert "reads one file of costs, got 2" in cab("paper", table.name, path, path, status=2).err


@pytest.mark.parametrize("table", of_source("lengths"))
def test_own_efficiency_lengths(table, cab):
    """The released raw costs give the printed lengths of ABC; the others are not released."""
    shown = cab("paper", table.name, PAPER / "efficiency_cost.csv", *AS_CSV).rows
    abc = {row["quantity"]: (float(row["own"]), float(row["published"])) for row in shown if row["own"]}
    assert {row["attention"] for row in shown if row["own"]} == {"abc"}
    assert len(abc) == len({row["quantity"] for row in shown})
    assert all(own == pytest.approx(value, abs=0.0015) for own, value in abc.values())


def test_own_gradients(tmp_path, cab):
    norms = {"linear": [1.0, 2.0, 6.0], "vanilla": [2.0, 2.0, 5.0]}
    linear, vanilla = (tmp_path / f"{name}.csv" for name in norms)
    for path, values in zip((linear, vanilla), norms.values(), strict=True):
        rows = [f"{path.stem},{step},0.5,{value}" for step, value in enumerate(values)]
        path.write_text("\n".join(["attention,step,loss,all", *rows, ""]))
    shown = cab("paper", "transnormer2", linear, vanilla, *AS_CSV).rows
    own = {row["attention"]: float(row["own"]) for row in shown if row["own"]}
    assert own == pytest.approx({n: statistics.pstdev(v) / statistics.fmean(v) for n, v in norms.items()}, abs=1e-6)
    refusals = {(PAPER / "lra.csv",): "lra.csv has no columns all", (linear, linear): "has norms of linear again"}
    for files, words in refusals.items():
        assert words in cab("paper", "transnormer2", *files, status=2).err
    linear.write_text("attention,all\nabc,-1\n")
    assert "needs an attention and a finite norm" in cab("paper", "transnormer2", linear, status=2).err


AGREEMENTS = {
    "table1": (51, 1, 2),
    "table2": (44, 6, 0),
    "table4": (87, 13, 1),
    "table5": (54, 1, 3),
    "table14": (38, 5, 1),
    "transnormer13": (31, 7, 2),
}
"""Numbers of values of preset `paper` and of the registry that agree with the published ones, differ, or are absent."""


@pytest.mark.parametrize("table", of_source("settings"))
def test_own_settings_are_those_of_preset_paper(table):
    """tests/cab/config/test_compose_paper.py has their values."""
    agrees = compared(table)["agrees"].tolist()
    assert tuple(agrees.count(word) for word in ("yes", "no", "")) == AGREEMENTS[table.name]


@pytest.mark.usefixtures("_counts")
@pytest.mark.parametrize("table", of_source("parameters"))
def test_own_parameters(table):
    for row in compared(table).to_dict("records"):
        own = COUNTS.get((row["pattern"], row["backbone"], row["attention"]), math.nan) / 1e6
        assert row["own"] == pytest.approx(own, nan_ok=True)
        if not math.isnan(own):
            assert abs(own - float(row["published"])) < 0.01
            is_truncated = round(own, 2) != float(row["published"])
            assert row["agrees"] == ("yes, truncated in print" if is_truncated else "yes")


@pytest.mark.usefixtures("_counts")
@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in TABLES])
def test_each_is_printed_without_results(name, cab):
    output = cab("paper", name)
    assert len(output.out.splitlines()) >= 4
    assert output.err == "" or not TABLES[name].reads, "nothing is missing"


def test_a_table_has_the_form_that_is_asked_for(cab):
    begins = {"text": "Table 6", "csv": "pattern,", "markdown": "**Table 6", "latex": "% Table 6"}
    for form, begin in begins.items():
        printed = cab("paper", "table6", "--format", form).out
        assert printed.startswith(begin)
        assert (r"\begin{tabular}" in printed) == (form == "latex")


def test_results_that_are_not_comparable_are_refused(tmp_path, cab):
    for preset in ("mini", "smoke"):
        make_record({"accuracy": 40.0}, **ARENA, dataset="text", preset=preset).write(tmp_path)
    presets = "results of presets mini, smoke are not comparable; select one with --preset"
    assert presets in cab("paper", "lra", tmp_path, status=2).err
    mini = ("paper", "lra", tmp_path, "--preset", "mini")
    cab(*mini)
    other = {**ARENA, "config_variant": "brackets dropped"}
    make_record({"accuracy": 40.0}, **other, dataset="text", preset="mini").write(tmp_path)
    assert "results of variants ['', 'brackets dropped']" in cab(*mini, status=2).err
