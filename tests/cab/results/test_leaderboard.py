"""The table of a leaderboard, and `cab leaderboard` as a command."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cab.errors import EXAMPLE_COMMAND
from cab.records.files import PAPER_DIR
from cab.records.record import Cost, Record, Status
from cab.results.leaderboard import compared, index_boards, pattern_table, records_csv, trivial_baselines
from cab.results.load import load_results
from tests.helpers.made_records import make_about, make_metric, make_record, number

MINE = "mine/etth1/multivariate/informer"
"""A place of a task that Table 3 does not have."""


def leaderboard(*sources: Path, normalization: str = "results") -> pd.DataFrame:
    return pd.concat([board.table for board in index_boards(load_results(sources), normalization)], ignore_index=True)


def test_a_missing_task_leaves_no_average_and_says_why(tmp_path: Path, add: Callable[..., Path]) -> None:
    for name, task in itertools.product(("vanilla", "abc", "s4d"), ("mine", "yours")):
        if (name, task) != ("s4d", "yours"):
            add({"mse": number(name, task)}, attention=name, task=task)
    row = leaderboard(tmp_path / "results").set_index("attention").loc["s4d"]
    assert math.isnan(row["index"])
    assert math.isnan(row["yours.index"])
    assert math.isfinite(row["mine.index"])
    assert row["missing"] == "yours: missing: informer etth1 multivariate mse; no index in yours"


def test_a_row_depends_on_no_other_source(tmp_path: Path, add: Callable[..., Path]) -> None:
    """Nor on the normalization, for printed values, which have no number of seeds."""
    for name, variant in itertools.product(("vanilla", "abc"), ("M", "S")):
        names = {"dataset": "synthetic", "preset": "smoke", "attention": name, "config_variant": variant}
        add({"mse": number(name), "mae": number(variant, name)}, **names)
    rehearsal = tmp_path / "results"
    together, alone = leaderboard(rehearsal, PAPER_DIR), leaderboard(PAPER_DIR, normalization="official")
    of_paper = together[together["source"] == "published"]
    rows = (rows.set_index(["pattern", "attention"]).sort_index() for rows in (of_paper[alone.columns], alone))
    pd.testing.assert_frame_equal(*rows, check_dtype=False)
    assert alone["seeds"].isna().all()
    assert set(alone["normalization"]) == {"printed"}
    printed = pd.read_csv(PAPER_DIR / "compositional_index.csv").query("task == 'all'").dropna()
    both = alone.merge(printed, on=["pattern", "attention"], suffixes=("", "_printed"))
    assert len(both) == len(printed) > 0
    assert (both["index"] == both["index_printed"]).all()
    lm = alone[(alone["pattern"] == "CS") & (alone["attention"] == "vanilla")]
    assert "lm/pg19/gpt2: not given in the paper" in lm["missing"].item()
    own = together[together["source"] == "own"]
    expected = leaderboard(rehearsal)
    pd.testing.assert_frame_equal(own[expected.columns].reset_index(drop=True), expected, check_dtype=False)
    assert set(own["normalization"]) == {"results"}
    assert own["lstf.index"].notna().all()


def test_presets_and_synthetic_data_are_kept_apart(tmp_path: Path) -> None:
    names = ("vanilla", "abc", "local", "linear", "performer")
    for preset, dataset in itertools.product(("mini", "smoke"), ("etth1", "synthetic")):
        for name in names:
            cell = {"attention": name, "preset": preset, "dataset": dataset, "task": "mine"}
            record = make_record({"mse": number(preset, dataset, name)}, **cell)
            record.write(tmp_path / f"{preset}-{dataset}")
            record.write(tmp_path / "results")
    together = leaderboard(tmp_path / "results")
    suites = list(dict.fromkeys(zip(together["preset"], together["data"], strict=True)))
    assert suites == [("mini", "real"), ("smoke", "real"), ("smoke", "rehearsal"), ("mini", "synthetic")]
    for (preset, data), rows in together.groupby(["preset", "data"]):
        folder = tmp_path / f"{preset}-{'etth1' if data == 'real' else 'synthetic'}"
        expected = leaderboard(folder).set_index("attention")["index"]
        assert rows.set_index("attention")["index"].to_dict() == pytest.approx(expected.to_dict(), nan_ok=True)
        assert rows["index"].notna().all() == (data != "synthetic")


@pytest.mark.parametrize("value", [None, 1e39, 1.7e308, -1.7e308])
def test_a_seed_without_a_score_is_named(value: float | None, tmp_path: Path, add: Callable[..., Path]) -> None:
    """The mean is that of the others; an index that needs the value is absent."""
    for name in ("vanilla", "abc", "local"):
        for seed in (0, 1):
            mse = value if (name, seed) == ("abc", 1) else number(name, seed)
            metrics = {"mse": mse, "mae": number(seed, name), "all_windows": mse}
            add(metrics, beside=["all_windows"], attention=name, seed=seed, task="mine")
    row = leaderboard(tmp_path / "results").set_index("attention").loc["abc"]
    assert row[f"{MINE}.mse"] == number("abc", 0)
    assert (row[f"{MINE}.mse.seeds"], row[f"{MINE}.mae.seeds"], row["seeds"]) == (1, 2, 1)
    assert math.isnan(row["index"])
    text = "1 of 2 without a score (NaN, inf or overflow)"
    assert row["missing"] == f"mine: {text}: informer etth1 multivariate mse; no index in mine"


@pytest.mark.parametrize("present", [False, True])
def test_nothing_to_show_is_an_error_and_writes_nothing(
    tmp_path: Path, present: bool, refused: Callable[..., str]
) -> None:
    if present:
        (tmp_path / "results").mkdir()
    error = refused("leaderboard", "results", "--out", "out", words=["results"])
    assert (EXAMPLE_COMMAND in error) == present


def test_a_name_that_ends_in_a_number_is_no_point_of_a_curve(tmp_path: Path, add: Callable[..., Path]) -> None:
    for name in ("vanilla", "abc"):
        add({"rouge_1": number(name), "hits_10": number(name)}, attention=name, task="mine")
    [board] = index_boards(load_results(tmp_path / "results"), "results")
    assert [column.label for column in pattern_table([board], "NC").columns[:3]] == ["mine", "rouge_1", "hits_10"]


def write_failed(folder: Path, cost: Cost, **changes: Any) -> None:
    about, metrics = make_about(attention="abc", **changes), [make_metric("mse", None)]
    Record.failed(about, status=Status.OOM, error=MemoryError(), step=None, cost=cost, metrics=metrics).write(folder)


def test_a_failed_run_has_no_training_time(tmp_path: Path, add: Callable[..., Path]) -> None:
    for seed in (0, 1):
        for name in ("vanilla", "abc"):
            add({"mse": number(name, seed)}, attention=name, seed=seed)
    write_failed(tmp_path / "results", Cost(train_seconds=1.0, wall_seconds=1.0), seed=1)
    table = leaderboard(tmp_path / "results").set_index("attention")
    place = "lstf/etth1/multivariate/informer"
    assert table[f"{place}.train_seconds"].to_dict() == {"vanilla": 75.5, "abc": 75.5}
    assert table.loc["abc", [f"{place}.mse.seeds", "seeds"]].tolist() == [1, 1]
    assert f"{place}: 1 of 2 without a score (oom)" in table.loc["abc", "missing"]


def test_a_copy_of_a_record_is_no_second_seed(tmp_path: Path, add: Callable[..., Path]) -> None:
    for name in ("vanilla", "abc"):
        path = add({"mse": number(name)}, attention=name)
        path.with_name(f"copy-{name}.json").write_bytes(path.read_bytes())
    [board] = index_boards(load_results(tmp_path / "results"), "results")
    assert board.measured["sd"].isna().all()
    assert len(records_csv(load_results(tmp_path / "results"))) == 4


def test_trivial_answers_are_those_of_a_run_with_a_score(tmp_path: Path, add: Callable[..., Path]) -> None:
    write_failed(tmp_path / "results", Cost())
    add({"mse": 1.0}, baselines={"repeat": {"mse": 2.5}})
    results = load_results(tmp_path / "results").assign(place=MINE)
    assert trivial_baselines(results) == {(MINE, "mse", "repeat"): 2.5}


def test_the_table_of_a_pattern(tmp_path: Path, add: Callable[..., Path]) -> None:
    """Best index first; the best value is marked, but not that of a baseline; yours has one attention, so no index."""
    made: dict[str, Any] = {"preset": "mini", "dataset": "etth1", "config_variant": "", "pattern": "NS", "task": "mine"}
    baselines = {"repeat": {"mse": 0.05, "mae": 0.05}}
    for attention, mse in (("abc", 0.3), ("vanilla", 0.1), ("linear", 0.2), ("gla", 0.9), ("s4d", 0.5)):
        add({"mse": mse, "mae": mse}, attention=attention, baselines=baselines, **made)
    add({"f_score": 0.4}, attention="local", **made | {"task": "yours", "backbone": "pointr"})
    [board] = index_boards(load_results(tmp_path / "results"), "results")
    table = pattern_table([board], "NS")
    labels = [row.label for row in table.rows]
    assert labels == ["vanilla", "linear", "abc", "s4d", "gla", "local", "repeat (trivial baseline)"]
    columns = {column.label: dict(zip(labels, column.cells, strict=True)) for column in table.columns}
    assert list(columns) == [
        *("all", "mine", "yours", "mse", "mae", "f_score (dB)"),
        *("params, M", "training time, s", "peak memory, MiB", "seeds"),
    ]
    assert (columns["mse"]["vanilla"].text, columns["mse"]["vanilla"].style) == ("0.1", "best")
    assert (columns["mse"][labels[-1]].text, columns["mse"][labels[-1]].style) == ("0.05", "")
    assert columns["mine"]["local"].hint.startswith("mine: missing: informer etth1 mse, informer etth1 mae")
    assert columns["params, M"]["vanilla"].text == "-", "it lacks yours"
    assert table.notes[-1].startswith("-: ")


@pytest.mark.parametrize("normalization", ["official", "results"])
def test_published_rows_join_those_of_their_full_training(
    tmp_path: Path, add: Callable[..., Path], normalization: str
) -> None:
    """The heading names the normalization of the own indices; the published ones are as printed."""
    place = {"task": "pcc", "dataset": "pcn", "config_variant": "", "backbone": "pointr", "preset": "paper"}
    for name in ("vanilla", "abc"):
        add({metric: number(name) for metric in ("cd_l1", "cd_l2", "f_score")}, attention=name, **place)
    boards = index_boards(load_results([tmp_path / "results", PAPER_DIR]), normalization)
    [(group, _)] = compared(boards)
    assert [board.preset for board in group] == ["paper", "published"]
    made = pattern_table(group, "NC")
    assert made.caption.startswith(f"Preset paper (index: {normalization}) and Published numbers, pattern NC")
    labels = [row.label for row in made.rows]
    assert {"abc", "abc (published)", "vanilla", "vanilla (published)"} <= set(labels)
    cells = dict(zip(labels, next(column for column in made.columns if column.label == "pcc").cells, strict=True))
    printed = pd.read_csv(PAPER_DIR / "compositional_index.csv").query("task == 'pcc' and attention == 'abc'")
    assert cells["abc (published)"].text == f"{printed['index'].item():.3f}"


def test_a_pattern_without_own_rows_has_no_columns_of_costs(tmp_path: Path, add: Callable[..., Path]) -> None:
    add({"mse": 1.0, "mae": 1.0}, attention="abc", preset="paper", pattern="NC")
    boards = index_boards(load_results([tmp_path / "results", PAPER_DIR]), "official")
    costs = {
        pattern: [c for c in pattern_table(boards, pattern).columns if c.group == "of all cells"]
        for pattern in ("NC", "CC")
    }
    assert (len(costs["NC"]), costs["CC"]) == (3, [])
