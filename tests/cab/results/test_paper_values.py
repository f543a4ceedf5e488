"""`cab paper TABLE`: the published and the own values of every table are read and recomputed here by other code."""

from __future__ import annotations

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

from cab.config.compose import Composer
from cab.records.record import Cost
from cab.registry.registries import ATTENTIONS, TASKS
from cab.results import paper_values
from cab.results.comparison import compared, shown
from cab.results.load import OWN, load_results
from cab.results.published import PaperTable, paper_tables, published_values, rows as rows_of
from tests.helpers.command import Command
from tests.helpers.made_records import make_record

ROOT = Path(__file__).parents[3]
PAPER = ROOT / "results" / "paper"
TABLES = paper_tables()
JOINED = {name: table for name, table in TABLES.items() if table.keys}
TERM = ("pattern", "task", "backbone", "dataset", "metric")
ARENA: dict[str, Any] = {"task": "lra", "config_variant": "", "backbone": "encoder", "pattern": "NS"}
AS_CSV = ("--format", "csv")
COMPOSE = Composer()


COUNTS = {
    (row["pattern"], row["backbone"], row["attention"]): int(row["params"])
    for row in rows_of("parameters_reproduced.csv")
}


def of_source(*sources: str) -> list[Any]:
    return [pytest.param(table, id=name) for name, table in TABLES.items() if table.source in sources]


@pytest.fixture(scope="module")
def published() -> Any:
    """The raw metrics of Table 3, as if they were own results."""
    frame = load_results(PAPER / "results.csv").assign(source=OWN)
    return frame[frame["value"].notna()]


@pytest.fixture
def _counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the counting of parameters, which tests/backbones/test_backbones_parameters.py tests, by its results."""
    monkeypatch.setattr(paper_values, "count_parameters", lambda *cell: COUNTS.get(cell))


@pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in JOINED.items()])
def test_the_published_values_are_those_of_the_file(table: PaperTable) -> None:
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


# --- from records -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", of_source("records"))
def test_own_values_are_means_over_the_selected_runs(table: PaperTable, tmp_path: Path, cab: Command) -> None:
    """Two seeds of every run that the table selects, and runs with another setting, metric, data set or attention."""
    random.seed(table.name)
    expected: dict[tuple[str, ...], list[float]] = {}
    runs: dict[tuple[tuple[str, str], ...], dict[str, list[float]]] = defaultdict(dict)
    rows: list[Any] = published_values(table).to_dict("records")
    for row in rows:
        options = re.sub(r"\battention=\[?([^\] ]+)\]?", r"attention.name=\1", row.get("options", ""))
        pairs = (pair.partition("=")[::2] for pair in table.select.format(**{**row, "options": options}).split())
        wanted = {name: value for name, value in pairs if value}
        values = [random.uniform(1, 9) for _ in range(2)]
        if not (metric := wanted.pop("metric", "")):
            continue
        run = tuple(sorted(wanted.items()))
        values = runs[run].setdefault(metric, values)
        key = tuple(value for name, value in row.items() if name != "published")
        expected[key] = values
    for run, metrics in runs.items():
        write_runs(tmp_path, dict(run), metrics)
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
    cell: dict[str, Any] = {"task": "lm", "dataset": "pg19", "config_variant": "", "backbone": "gpt2", "pattern": "NS"}
    cell |= {"attention": wanted.get("attention.name", "vanilla")}
    cell |= {name: value for name, value in wanted.items() if "." not in name}
    config: dict[str, Any] = {}
    for path, value in wanted.items():
        *groups, name = path.split(".")
        if groups:
            reduce(lambda inner, group: inner.setdefault(group, {}), groups, config)[name] = value
    for seed in (0, 1):
        cost = {"hours": 3.0, "params_millions": 7.0} | {name: values[seed] for name, values in metrics.items()}
        scores = {name: value for name, value in cost.items() if name not in ("hours", "params_millions")} or {"x": 1.0}
        costs = Cost(train_seconds=3600 * cost["hours"], params=round(1e6 * cost["params_millions"]))
        make_record(scores, **cell, seed=seed, config=config, cost=costs).write(folder)


def test_results_without_a_value_of_table_3_are_named(tmp_path: Path, cab: Command) -> None:
    make_record({"mse": 0.5, "mae": 0.5}, pattern="NS", preset="paper").write(tmp_path)
    note = "note: no given result completes a value of Table 3; `cab run suite=paper"
    assert note in cab("paper", "table3", tmp_path).err


def test_generated_data_replace_the_published_ones_in_a_rehearsal(tmp_path: Path, cab: Command) -> None:
    mine, smoke, real = "mine(heads=2, window_size=4)", tmp_path / "smoke", tmp_path / "paper"
    for dataset, attention in (("listops_synthetic", "vanilla"), ("text_synthetic", mine)):
        run = {**ARENA, "dataset": dataset, "attention": attention, "verified": attention == "vanilla"}
        make_record({"accuracy": 40.0}, **run, preset="smoke").write(smoke)
    make_record({"accuracy": 40.0}, **ARENA, dataset="text", preset="paper").write(real)
    output = cab("paper", "transnormer6", smoke)
    assert "rehearsal on generated data" in output.out.splitlines()[0]
    assert output.out.splitlines()[-1].split()[-4:-1] == ["†", "40.0", "1"]
    assert "74 published values without an own one" in output.err
    assert "has not passed `cab verify`" in output.err

    def own_of(rows: list[dict[str, str]]) -> list[tuple[str, ...]]:
        return [(row["attention"], row["quantity"], row["data"]) for row in rows if row["own"]]

    shown = cab("paper", "transnormer6", smoke, *AS_CSV).rows
    assert own_of(shown) == [("vanilla", "listops", "rehearsal"), (mine, "text", "rehearsal")]
    assert shown[-1]["attention"] == mine, "attentions that are not published follow"
    assert shown[-1]["published"] == ""
    assert own_of(cab("paper", "transnormer6", smoke, real, *AS_CSV).rows) == [("vanilla", "text", "real")]


@pytest.mark.parametrize("table", ["lra", "transnormer6"])
def test_stored_means_of_long_range_arena_are_apart_from_the_published_values(table: str, cab: Command) -> None:
    published, _, own = cab("paper", table, "results/lra").out.partition("\n\n")
    caption = "Own means of preset mini on generated data, 1 to 3 seeds: not comparable with the published values"
    assert own.splitlines()[0] == caption
    assert "own" not in published.splitlines()[1].split()
    lines = [line.split() for line in own.splitlines()[2:]]
    assert ["vanilla", "lra", "listops_synthetic", "accuracy", "42.667", "±", "0.61", "3"] in lines
    assert ["skyformer", "lra", "text_synthetic", "accuracy", "97.4", "1"] in lines
    assert len(lines) == 41, "without the trivial baselines"
    assert not any(row["own"] for row in cab("paper", table, "results/lra", *AS_CSV).rows)
    refusal = cab("paper", table, "results/lra", "--preset", "paper", status=2).err
    assert "no result has preset 'paper' (available: mini)" in refusal
    cab("paper", "table3", "results/lra", status=2)  # they are of no task of Table 3


@pytest.mark.parametrize(("table", "is_printed"), [("lra", True), ("table3", False), ("table6", False)])
def test_results_on_generated_data_are_apart(table: str, is_printed: bool, tmp_path: Path, cab: Command) -> None:
    arena = {**ARENA, "dataset": "text_synthetic"}
    series = {"task": "lstf", "dataset": "synthetic", "config_variant": "", "backbone": "informer", "pattern": "NC"}
    for seed, value in enumerate((0.4, 0.6)):
        for cell, metric in ((arena, "accuracy"), (series, "mse")):
            make_record({metric: value}, **cell, preset="mini", seed=seed).write(tmp_path)
    caption = "Own means of preset mini on generated data, 2 seeds: not comparable with the published values"
    output = cab("paper", table, tmp_path)
    assert (f"{caption}; `cab score --score metrics` prints them" in output.err) != is_printed
    assert (caption in output.out) == is_printed
    if is_printed:
        first, header, *rows = output.out.split("\n\n")[-1].splitlines()
        assert (first, header.split()) == (caption, ["attention", "task", "dataset", "metric", "own", "seeds"])
        [row] = [row.split() for row in rows]
        assert row[-7:] == ["lra", "text_synthetic", "accuracy", "0.5", "±", "0.14", "2"]
    output = cab("paper", table, tmp_path, *AS_CSV)
    assert not any(row["own"] for row in output.rows)
    assert caption in output.err


def test_the_mean_is_over_the_seeds_with_a_score(tmp_path: Path, cab: Command) -> None:
    for seed, value in enumerate((0.4, None, 0.6)):
        make_record({"accuracy": value}, **ARENA, dataset="text", preset="paper", seed=seed).write(tmp_path)
    [row] = [row for row in cab("paper", "lra", tmp_path, *AS_CSV).rows if row["own"]]
    missing = "1 of 3 without a score (NaN, inf or overflow)"
    assert (float(row["own"]), row["runs"], row["missing"]) == (0.5, "2", missing)
    assert f"{missing}: vanilla text" in cab("paper", "lra", tmp_path).err


# --- from Table 3 -----------------------------------------------------------------------------------------------------


OF_RESULTS = of_source("indices", "scales", "benefit", "correlations", "records")


@pytest.mark.parametrize("table", OF_RESULTS)
def test_published_results_are_never_own_values(table: PaperTable, published: Any) -> None:
    paper = load_results(PAPER)
    assert compared(table, paper)["own"].isna().all()
    both = pd.concat([published, paper], ignore_index=True)
    pd.testing.assert_frame_equal(compared(table, both), compared(table, published))


@pytest.mark.parametrize("table", of_source("indices", "benefit", "correlations"))
def test_headings_name_the_normalization_of_own_indices(table: PaperTable, published: Any) -> None:
    assert shown(table, compared(table, published)).caption == f"{table.title}; own values: normalization official"
    assert shown(table, compared(table)).caption == table.title


@pytest.mark.parametrize("table", of_source("scales"))
def test_means_and_deviations_over_attentions(table: PaperTable, published: Any) -> None:
    """FlashAttention computes what softmax attention does, and is left out."""
    values: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for row in rows_of("results.csv"):
        if row["value"] and row["attention"] != "flash":
            values[tuple(row[name] for name in TERM)].append(float(row["value"]))
    made: list[Any] = compared(table, published).to_dict("records")
    for row in made:
        compute = statistics.fmean if row["quantity"] == "mean" else statistics.stdev
        assert row["own"] == pytest.approx(compute(values[tuple(row[name] for name in TERM)]), rel=1e-9)
        assert row["difference"] == row["own"] - float(row["published"])


def test_the_index_of_each_task(published: Any) -> None:
    made = compared(TABLES["table6"], published)
    expected = [row for row in rows_of("compositional_index.csv") if row["task"] != "all"]
    absent = made[made["published"] == ""]
    assert absent[["pattern", "task", "attention", "missing"]].to_numpy().tolist() == [
        ["NS", "sum", "s4d", "missing: " + ", ".join(f"transformer multi_news rouge{n}" for n in "12L")],
        ["CS", "lm", "vanilla", "missing: gpt2 pg19 ppl"],
    ]
    made = made[made["published"] != ""]
    assert len(made) == len(expected)
    texts = {(row["pattern"], row["task"], row["attention"]): row["index"] for row in expected}
    for row in made.to_dict("records"):
        assert row["published"] == texts[row["pattern"], row["task"], row["attention"]]
    wrong = made[made["difference"].abs() > 0.03]
    assert wrong[["pattern", "task", "attention"]].to_numpy().tolist() == [["CS", "lm", "abc"]], "a known contradiction"


def test_the_benefit_is_of_the_best_efficient_attention(published: Any) -> None:
    indices = compared(TABLES["table6"], published)
    indices = indices[indices["pattern"] == "NS"].dropna(subset=["own"])
    index = {(row["task"], row["attention"]): row["own"] for row in indices.to_dict("records")}
    made = {(row["task"], row["quantity"]): row for row in compared(TABLES["table12"], published).to_dict("records")}
    for task in ("tts", "sum", "sr", "mlm"):
        efficient = {
            name: value for (of, name), value in index.items() if of == task and name not in ("vanilla", "flash")
        }
        best = max(efficient, key=lambda name: efficient[name])
        assert (made[task, "efficient"]["best"], made[task, "efficient"]["own"]) == (best, efficient[best])
        assert made[task, "vanilla"]["own"] == index[task, "vanilla"]
        assert math.isnan(made[task, "without"]["own"]), "raw metrics are not published"


@pytest.mark.parametrize("table", of_source("correlations"))
def test_correlations_of_own_indices(table: PaperTable, published: Any) -> None:
    own: dict[str, dict[str, float]] = defaultdict(dict)
    for row in compared(TABLES["table3"], published).to_dict("records"):
        if row["metric"] == "index" and row["attention"] != "flash":
            name = row["pattern"] if row["task"] == "all" else f"{row['pattern']} {row['task']}"
            own[name] |= {} if math.isnan(row["own"]) else {row["attention"]: row["own"]}
    own["LRA"] = {
        row["attention"]: statistics.fmean([float(row[x]) for x in list(row)[1:]]) for row in rows_of("lra.csv")
    }
    frame = compared(table, published)
    assert len(frame) == {"figure3a": 10, "figure4": 120}[table.name]
    for row in frame.to_dict("records"):
        a, b = own[row["a"]], own[row["b"]]
        shared = sorted(a.keys() & b.keys())
        if shared[2:]:
            assert row["own"] == pytest.approx(np.corrcoef([[x[name] for name in shared] for x in (a, b)])[0, 1])
        else:
            assert math.isnan(row["own"])


def test_most_colors_of_figure_4_are_the_correlations_of_table_6() -> None:
    """36 of the 55 pairs without LRA to 0.03; the others show indices that were given to failed runs."""
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows_of("compositional_index.csv"):
        if row["task"] != "all" and row["index"] and row["attention"] not in ("flash", "none"):
            values[f"{row['pattern']} {row['task']}"][row["attention"]] = float(row["index"])
    close = total = 0
    for row in rows_of("correlations.csv"):
        if row["figure"] == "figure4" and "LRA" not in row["a"] + row["b"]:
            a, b = values[row["a"]], values[row["b"]]
            shared = sorted(a.keys() & b.keys())
            total += 1
            if shared[1:]:
                found = np.corrcoef([[x[name] for name in shared] for x in (a, b)])[0, 1]
                close += abs(found - float(row["pearson"])) <= 0.03
    assert (close, total) == (36, 55)


def test_lengths_of_figure_3c_are_those_of_the_task() -> None:
    lengths = {int(row["length"]) for row in rows_of("context_lengths.csv")}
    assert lengths == set(TASKS.get("lm").options["context_lengths"])


# --- from files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", of_source("costs"))
def test_own_costs(table: PaperTable, tmp_path: Path, cab: Command) -> None:
    """A file with every published value, twice as large, in the units of `cab efficiency`."""
    lines = ["attention,pattern,phase,length,seconds,bytes"]
    units = {"time_ms": 1e-3, "memory_mib": 2.0**20, "steps_per_second": 1.0}
    rows: list[Any] = published_values(table).to_dict("records")
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
def test_own_efficiency_lengths(table: PaperTable, cab: Command) -> None:
    """The released raw costs give the printed lengths of ABC; the others are not released."""
    shown = cab("paper", table.name, "results/paper/efficiency_cost.csv", *AS_CSV).rows
    abc = {row["quantity"]: (float(row["own"]), float(row["published"])) for row in shown if row["own"]}
    assert {row["attention"] for row in shown if row["own"]} == {"abc"}
    assert len(abc) == len({row["quantity"] for row in shown})
    assert all(own == pytest.approx(value, abs=0.0015) for own, value in abc.values())


def test_own_gradients(tmp_path: Path, cab: Command) -> None:
    norms = {"linear": [1.0, 2.0, 6.0], "vanilla": [2.0, 2.0, 5.0]}
    linear, vanilla = (tmp_path / f"{name}.csv" for name in norms)
    for path, values in zip((linear, vanilla), norms.values(), strict=True):
        rows = [f"{path.stem},{step},0.5,{value}" for step, value in enumerate(values)]
        path.write_text("\n".join(["attention,step,loss,all", *rows, ""]))
    shown = cab("paper", "transnormer2", linear, vanilla, *AS_CSV).rows
    own = {row["attention"]: float(row["own"]) for row in shown if row["own"]}
    assert own == pytest.approx({n: statistics.pstdev(v) / statistics.fmean(v) for n, v in norms.items()}, abs=1e-6)
    refusals = {("results/paper/lra.csv",): "lra.csv has no columns all", (linear, linear): "has norms of linear again"}
    for files, words in refusals.items():
        assert words in cab("paper", "transnormer2", *files, status=2).err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("", "contains no norms"),
        *((f"abc,{text}\n", f"line 2: .* got 'abc' and '{text}'") for text in ("x", "nan", "-1", "", "1_0", "1e400")),
        (",1\n", "line 2: .* needs an attention"),
        ("abc,1\nabc,1,2\n", "line 3: 3 values for 2 columns"),
    ],
)
def test_norms_that_are_none(rows: str, message: str, tmp_path: Path, cab: Command) -> None:
    (tmp_path / "norms.csv").write_text(f"attention,all\n{rows}")
    assert re.search(message, cab("paper", "transnormer2", tmp_path / "norms.csv", status=2).err)


# --- from the configuration and the networks --------------------------------------------------------------------------


@pytest.mark.parametrize("table", of_source("settings"))
def test_own_settings_are_those_of_preset_paper(table: PaperTable) -> None:
    cells = rows_of("results.csv")
    for row in compared(table).to_dict("records"):
        option, agrees = row["option"], row["own"].split() == row["published"].split()
        if option == "supported":
            patterns = ATTENTIONS.get(row["attention"]).patterns if "attention" in row else None
            patterns = patterns or TASKS.get(row["task"]).backbones[row["backbone"]]
            assert row["own"] == ("yes" if row["pattern"] in [str(pattern) for pattern in patterns] else "no")
        elif "." in option:
            names = ("task", "pattern", "backbone", "dataset")
            cell = next(c for c in cells if all(row.get(n, c[n]) in ("", c[n]) for n in names[:3]))
            words = [f"{name}={row.get(name) or cell[name]}" for name in names]
            words = [word.replace("=ett", "=etth1") if word == "dataset=ett" else word for word in words]
            config = COMPOSE([*words, f"attention={row.get('attention') or 'vanilla'}", "preset=paper"])
            values = [config[path.split(".")[0]].get(path.split(".")[1]) for path in option.split("*")]
            value = values[0] if len(values) == 1 else math.prod(values)
            own = " ".join(map(str, value if isinstance(value, list) else [value]))
            numbers = [to_number(word) for word in row["own"].split()]
            assert numbers == ([] if value is None else [to_number(word) for word in own.split()])
            agrees = numbers == [to_number(word) for word in row["published"].split()]
        assert row["agrees"] == ("" if row["own"] == "" else "yes" if agrees else "no")


def to_number(word: str) -> float | str:
    try:
        return float(word)
    except ValueError:
        return word


@pytest.mark.usefixtures("_counts")
@pytest.mark.parametrize("table", of_source("parameters"))
def test_own_parameters(table: PaperTable) -> None:
    for row in compared(table).to_dict("records"):
        own = COUNTS.get((row["pattern"], row["backbone"], row["attention"]), math.nan) / 1e6
        assert row["own"] == pytest.approx(own, nan_ok=True)
        if not math.isnan(own):
            assert abs(own - float(row["published"])) < 0.01
            is_truncated = round(own, 2) != float(row["published"])
            assert row["agrees"] == ("yes, truncated in print" if is_truncated else "yes")


def test_a_count_that_is_truncated_in_print() -> None:
    published = published_values(TABLES["table16"])
    [row] = published.query("backbone == 'sr3' and attention == 'longshort'").to_dict("records")
    assert paper_values.count_parameters(row["pattern"], row["backbone"], row["attention"]) == 99_657_043
    assert paper_values._rounded(99.657043, row["published"]) == "yes, truncated in print"
    assert paper_values._rounded(99.661, row["published"]) == "no"


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_counts")
@pytest.mark.parametrize("form", ["text", "csv", "markdown", "latex"])
@pytest.mark.parametrize("name", TABLES)
def test_each_is_printed_without_results(name: str, form: str, cab: Command) -> None:
    output = cab("paper", name, "--format", form)
    lines = output.out.splitlines()
    assert len(lines) >= 4
    if name != "table3":
        assert (TABLES[name].title.split(":")[0].split()[0] in lines[0]) == (form != "csv")
        assert (r"\begin{tabular}" in output.out) == (form == "latex")
    assert output.err == "" or not TABLES[name].reads, "nothing is missing"


def test_the_tables_are_listed(cab: Command) -> None:
    guide = (ROOT / "docs" / "howto" / "reproduce-the-paper.md").read_text()
    for text in (cab("paper").out, cab("paper", "list").out, guide):
        lines = [line.split(maxsplit=1) for line in text.splitlines()]
        assert all([table.name, table.title] in lines for table in TABLES.values())
    readme = (PAPER / "README.md").read_text()
    assert all(path.name in readme for path in PAPER.glob("*.csv"))


def test_results_that_are_not_comparable_are_refused(tmp_path: Path, cab: Command) -> None:
    for preset in ("mini", "smoke"):
        make_record({"accuracy": 40.0}, **ARENA, dataset="text", preset=preset).write(tmp_path)
    presets = "results of presets mini, smoke are not comparable; select one with --preset"
    assert presets in cab("paper", "lra", tmp_path, status=2).err
    mini = ("paper", "lra", tmp_path, "--preset", "mini")
    cab(*mini)
    other = {**ARENA, "config_variant": "brackets dropped"}
    make_record({"accuracy": 40.0}, **other, dataset="text", preset="mini").write(tmp_path)
    variants = "results of variants ['', 'brackets dropped'] of a task are not comparable"
    assert variants in cab(*mini, status=2).err
    cab("paper", "table4", tmp_path, status=2)


def test_only_means_that_no_record_repeats_are_added(tmp_path: Path, cab: Command) -> None:
    """A table of another layout has no means, and the error for a wrong number has its line."""
    header, *_ = Path("results/lra/lra.csv").read_text().splitlines()
    mine, both = tmp_path / "mine", tmp_path / "both"
    for folder in (mine, both):
        folder.mkdir()
        (folder / "lra.csv").write_text(f"{header}\nmini,text_synthetic,,attention,abc,99.5,0.25,2\n")
    make_record({"accuracy": 12.5}, **ARENA, dataset="text_synthetic", preset="mini").write(both)
    for folders, shows_mean in (([both], False), ([both, mine], True)):
        output = cab("paper", "lra", *folders).out
        assert ("12.5" in output, "99.5" in output) == (True, shows_mean)
    cab("paper", "lra", "results/paper")
    (mine / "lra.csv").write_text(f"{header}\nmini,text_synthetic,,attention,abc,many,,2\n")
    message = "lra.csv, line 2: 'many' in column 'accuracy' is not a number"
    assert message in cab("paper", "lra", mine, status=2).err
