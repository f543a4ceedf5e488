"""The table of a leaderboard, and `cab leaderboard` as a command."""

import itertools
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cab.records.files import PAPER_DIR
from cab.records.record import Record, RunCost, Status
from cab.results.leaderboard import index_boards, pattern_table, records_csv, trivial_baselines
from cab.results.load import load_results
from tests.helpers.made_records import make_about, make_metric, make_record, number

MINE = "mine/etth1/multivariate/informer"
"""A place of a task that Table 3 does not have."""


def leaderboard(*sources: Path, normalization: str = "results") -> pd.DataFrame:
    return pd.concat([board.table for board in index_boards(load_results(sources), normalization)], ignore_index=True)


def test_presets_and_synthetic_data_are_kept_apart(tmp_path):
    names, presets, datasets = ("vanilla", "abc", "local"), ("mini", "smoke"), ("etth1", "synthetic")
    for name, preset, dataset in itertools.product(names, presets, datasets):
        cell = {"attention": name, "preset": preset, "dataset": dataset, "task": "mine"}
        record = make_record({"mse": number(preset, dataset, name)}, **cell)
        record.write(tmp_path / f"{preset}-{dataset}")
        record.write(tmp_path / "results")
    boards = index_boards(load_results([tmp_path / "results", PAPER_DIR]), "results")
    assert [board.heading for board in boards] == [
        *("Preset mini (index: results)", "Preset smoke (index: results)", "Published numbers"),
        *("Preset smoke, rehearsal on generated data (index: results)", "Preset mini, synthetic data"),
    ]
    together = leaderboard(tmp_path / "results")
    suites = list(dict.fromkeys(zip(together["preset"], together["data"], strict=True)))
    assert suites == [("mini", "real"), ("smoke", "real"), ("smoke", "rehearsal"), ("mini", "synthetic")]
    for (preset, data), rows in together.groupby(["preset", "data"]):
        folder = tmp_path / f"{preset}-{'etth1' if data == 'real' else 'synthetic'}"
        expected = leaderboard(folder).set_index("attention")["index"]
        assert rows.set_index("attention")["index"].to_dict() == pytest.approx(expected.to_dict(), nan_ok=True)
        assert rows["index"].notna().all() == (data != "synthetic")


def write_failed(folder: Path, cost: RunCost, **changes: Any) -> None:
    about, metrics = make_about(attention="abc", **changes), [make_metric("mse", None)]
    Record.failed(about, status=Status.OOM, error=MemoryError(), step=None, cost=cost, metrics=metrics).write(folder)


def test_a_failed_run_has_no_training_time(tmp_path):
    for seed, name in itertools.product((0, 1), ("vanilla", "abc")):
        make_record({"mse": number(name, seed)}, attention=name, seed=seed).write(tmp_path)
    write_failed(tmp_path, RunCost(train_seconds=1.0, wall_seconds=1.0), seed=1)
    table = leaderboard(tmp_path).set_index("attention")
    place = "lstf/etth1/multivariate/informer"
    assert table[f"{place}.train_seconds"].to_dict() == {"vanilla": 75.5, "abc": 75.5}
    assert table.loc["abc", [f"{place}.mse.seeds", "seeds"]].tolist() == [1, 1]
    assert f"{place}: 1 of 2 without a score (oom)" in table.loc["abc", "missing"]


def test_a_copy_of_a_record_is_no_second_seed(tmp_path):
    for name in ("vanilla", "abc"):
        path = make_record({"mse": number(name)}, attention=name).write(tmp_path)
        path.with_name(f"copy-{name}.json").write_bytes(path.read_bytes())
    [board] = index_boards(load_results(tmp_path), "results")
    assert board.measured["sd"].isna().all()
    assert len(records_csv(load_results(tmp_path))) == 4


def test_trivial_answers_are_those_of_a_run_with_a_score(tmp_path):
    write_failed(tmp_path, RunCost())
    make_record({"mse": 1.0}, baselines={"repeat": {"mse": 2.5}}).write(tmp_path)
    results = load_results(tmp_path).assign(place=MINE)
    assert trivial_baselines(results) == {(MINE, "mse", "repeat"): 2.5}


def test_the_table_of_a_pattern(tmp_path):
    """Best index first; the best value is marked, but not that of a baseline; yours has one attention, so no index."""
    made = {"preset": "mini", "dataset": "etth1", "config_variant": "", "pattern": "NS", "task": "mine"}
    baselines = {"repeat": {"mse": 0.05, "mae": 0.05}}
    for attention, mse in (("abc", 0.3), ("vanilla", 0.1), ("linear", 0.2), ("gla", 0.9), ("s4d", 0.5)):
        make_record({"mse": mse, "mae": mse}, attention=attention, baselines=baselines, **made).write(tmp_path)
    yours = {"task": "yours", "backbone": "pointr"}
    make_record({"f_score": 0.4}, attention="local", **made | yours).write(tmp_path)
    [board] = index_boards(load_results(tmp_path), "results")
    table = pattern_table([board], "NS")
    labels = [row.label for row in table.rows]
    assert labels == ["vanilla", "linear", "abc", "s4d", "gla", "local", "repeat (trivial baseline)"]
    columns = {column.label: dict(zip(labels, column.cells, strict=True)) for column in table.columns}
    assert (columns["mse"]["vanilla"].text, columns["mse"]["vanilla"].style) == ("0.1", "best")
    assert (columns["mse"][labels[-1]].text, columns["mse"][labels[-1]].style) == ("0.05", "")
    assert columns["params, M"]["vanilla"].text == "-", "it lacks yours"
