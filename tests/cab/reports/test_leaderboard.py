"""The table of a leaderboard, and `cab leaderboard` as a command."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cab.cli.main import main
from cab.errors import EXAMPLE_COMMAND
from cab.records.record import Cost, Record, Status
from cab.records.results import load_results
from cab.reports.leaderboard import Board, score_boards, trivial_baselines
from cab.reports.leaderboard_tables import pattern_table
from tests.cab.made_records import make_about, make_metric, make_record, number
from tests.cab.reports.conftest import write_suite

LSTF = "lstf/etth1/multivariate/informer"


def leaderboard(folder: Path, normalization: str = "results") -> pd.DataFrame:
    boards = score_boards(load_results(folder), normalization=normalization)
    return pd.concat([board.table for board in boards], ignore_index=True)


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    results = load_results(write_suite(tmp_path_factory.mktemp("suite")))
    [board] = score_boards(results, normalization="results")
    return board


def test_a_missing_task_leaves_no_average_and_says_why(board: Board) -> None:
    table = board.table.set_index(["pattern", "attention"])
    row = table.loc[("CS", "s4d")]
    assert math.isnan(row["index"])
    assert math.isnan(row["lm.index"])
    assert math.isfinite(row["sum.index"])
    assert row["missing"] == "lm: missing: gpt2 pg19 ppl; no index in lm"


def test_presets_and_synthetic_data_are_kept_apart(tmp_path: Path) -> None:
    names = ("vanilla", "abc", "local", "linear", "performer")
    for preset, dataset in itertools.product(("mini", "smoke"), ("etth1", "synthetic")):
        for name in names:
            record = make_record({"mse": number(preset, dataset, name)}, attention=name, preset=preset, dataset=dataset)
            record.write(tmp_path / f"{preset}-{dataset}")
            record.write(tmp_path / "results")
    together = leaderboard(tmp_path / "results")
    suites = list(dict.fromkeys(zip(together["preset"], together["data"], strict=True)))
    assert suites == [("mini", "real"), ("smoke", "real"), ("mini", "synthetic"), ("smoke", "synthetic")]
    for (preset, data), rows in together.groupby(["preset", "data"]):
        folder = tmp_path / f"{preset}-{'etth1' if data == 'real' else data}"
        expected = leaderboard(folder).set_index("attention")["index"]
        assert rows.set_index("attention")["index"].to_dict() == pytest.approx(expected.to_dict(), nan_ok=True)
        assert rows["index"].notna().all() == (data == "real")


def test_not_a_number_is_named_where_an_index_needs_it(tmp_path: Path, add: Callable[..., Path]) -> None:
    for name in ("vanilla", "abc", "local"):
        for seed in (0, 1):
            mse = None if (name, seed) == ("abc", 1) else number(name, seed)
            metrics = {"mse": mse, "mae": number(seed, name), "all_windows": mse}
            add(metrics, beside=["all_windows"], attention=name, seed=seed)
    table = leaderboard(tmp_path / "results").set_index("attention")
    assert math.isnan(table.loc["abc", f"{LSTF}.mse"])
    assert math.isnan(table.loc["abc", "index"])
    reason = str(table.loc["abc", "missing"])
    assert re.fullmatch(r"lstf: NaN or inf: informer etth1 multivariate mse in \S+; no index in lstf", reason)


@pytest.mark.parametrize("present", [False, True])
def test_nothing_to_show_is_an_error_and_writes_nothing(
    tmp_path: Path, present: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if present:
        (tmp_path / "results").mkdir()
    assert main(["leaderboard", str(tmp_path / "results"), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert str(tmp_path / "results") in error
    assert (EXAMPLE_COMMAND in error) == present
    assert not (tmp_path / "out").exists()


def test_a_name_that_ends_in_a_number_is_no_point_of_a_curve(tmp_path: Path, add: Callable[..., Path]) -> None:
    for name in ("vanilla", "abc"):
        add({"rouge_1": number(name), "hits_10": None if name == "abc" else 1.0}, attention=name)
    board = score_boards(load_results(tmp_path / "results"), normalization="results")[0]
    assert [column.label for column in pattern_table(board, "NC").columns[:3]] == ["lstf", "rouge_1", "hits_10"]
    missing = board.table.set_index("attention")["missing"]
    assert missing["abc"].startswith("lstf: NaN or inf: informer etth1 multivariate hits_10 in ")


def write_failed(folder: Path, cost: Cost, **changes: Any) -> None:
    about, metrics = make_about(attention="abc", **changes), [make_metric("mse", None)]
    Record.failed(about, status=Status.OOM, error=MemoryError(), step=None, cost=cost, metrics=metrics).write(folder)


def test_a_failed_run_has_no_training_time(tmp_path: Path, add: Callable[..., Path]) -> None:
    for seed in (0, 1):
        for name in ("vanilla", "abc"):
            add({"mse": number(name, seed)}, attention=name, seed=seed)
    write_failed(tmp_path / "results", Cost(train_seconds=1.0, wall_seconds=1.0), seed=1)
    table = leaderboard(tmp_path / "results").set_index("attention")
    assert table.loc["vanilla", "train_seconds"] == 75.5
    assert math.isnan(table.loc["abc", "train_seconds"])


def test_a_copy_of_a_record_is_no_second_seed(tmp_path: Path, add: Callable[..., Path]) -> None:
    for name in ("vanilla", "abc"):
        path = add({"mse": number(name)}, attention=name)
        path.with_name(f"copy-{name}.json").write_bytes(path.read_bytes())
    board = score_boards(load_results(tmp_path / "results"), normalization="results")[0]
    assert board.measured["deviation"].isna().all()


def test_trivial_answers_are_those_of_a_run_with_a_score(tmp_path: Path, add: Callable[..., Path]) -> None:
    write_failed(tmp_path / "results", Cost())
    add({"mse": 1.0}, baselines={"repeat": {"mse": 2.5}})
    results = load_results(tmp_path / "results").assign(place=LSTF)
    assert trivial_baselines(results) == {(LSTF, "mse", "repeat"): 2.5}


def test_other_data_under_one_name_are_shown_apart(tmp_path: Path, add: Callable[..., Path]) -> None:
    for name, data in (("vanilla", "feed"), ("abc", "feed"), ("local", "beef"), ("performer", "beef")):
        add({"mse": number(name)}, attention=name, data={"fingerprint": data})
        add({"mse": number(name)}, attention=name, dataset="etth2", data={"fingerprint": "deed"})
    add({"mse": number("lara")}, attention="lara", data={"fingerprint": "feed"})
    boards = score_boards(load_results(tmp_path / "results"), normalization="results")
    assert [sorted(board.measured["attention"].unique()) for board in boards] == [
        ["abc", "lara", "local", "performer", "vanilla"],
        ["local", "performer"],
    ]
    assert "etth1 multivariate informer in " in boards[1].heading
    places = [set(board.measured["place"]) for board in boards]
    assert places == [{LSTF, LSTF.replace("etth1", "etth2")}, {LSTF}]
    main_row = boards[0].measured.set_index(["attention", "place", "metric"])["value"]
    assert ("local", LSTF, "mse") not in main_row
    table = leaderboard(tmp_path / "results")
    assert set(table["data"]) == {"real", "real, other 1"}


def test_scores_of_other_data_are_refused(
    tmp_path: Path, add: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in (("vanilla", "feed"), ("abc", "feed"), ("local", "beef")):
        add({"mse": number(name)}, attention=name, data={"fingerprint": data})
    for command in ("score", "correlation"):
        assert main([command, str(tmp_path / "results")]) == 2
        error = capsys.readouterr().err
        assert "different data under one name" in error
        assert len(error.splitlines()) == 1


def test_the_table_of_a_pattern(tmp_path: Path, add: Callable[..., Path]) -> None:
    """Best index first; the best value is marked, but not that of a baseline; pcc has one attention, so no index."""
    made: dict[str, Any] = {"preset": "mini", "dataset": "etth1", "config_variant": "", "pattern": "NS"}
    baselines = {"repeat": {"mse": 0.05, "mae": 0.05}}
    for attention, mse in (("abc", 0.3), ("vanilla", 0.1), ("linear", 0.2), ("gla", 0.9), ("s4d", 0.5)):
        add({"mse": mse, "mae": mse}, attention=attention, baselines=baselines, **made)
    add({"f_score": 0.4}, attention="local", task="pcc", backbone="pointr", **made)
    [board] = score_boards(load_results(tmp_path / "results"), normalization="results")
    table = pattern_table(board, "NS")
    assert [row.label for row in table.rows] == ["vanilla", "linear", "abc", "s4d", "gla", "local", "repeat"]
    columns = [column.label for column in table.columns]
    assert columns == [
        *("average", "lstf", "pcc", "mse", "mae", "f_score (dB)"),
        *("parameters, M", "training time, s", "peak memory, MiB", "seeds"),
    ]
    cells = {row.label: dict(zip(columns, row.cells, strict=True)) for row in table.rows}
    assert (cells["vanilla"]["mse"].text, cells["vanilla"]["mse"].style) == ("0.1000*", "best")
    assert (cells["repeat"]["mse"].text, cells["repeat"]["mse"].style) == ("0.0500", "")
    assert cells["local"]["lstf"].reason.startswith("lstf: missing: informer etth1 mse, informer etth1 mae")
    assert cells["vanilla"]["parameters, M"].text == "–", "it lacks pcc"
    assert table.notes[-1].startswith("–: ")
