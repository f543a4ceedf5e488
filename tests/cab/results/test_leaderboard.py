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
from cab.records.results import PAPER_DIR, load_results

from cab.cli.main import main
from cab.errors import EXAMPLE_COMMAND
from cab.records.record import Cost, Record, Status
from cab.results.formats import gain, numbers
from cab.results.leaderboard import Board, compared, pattern_table, score_boards, trivial_baselines
from cab.results.table import Column, Row, Table
from tests.helpers.index_results import write_suite
from tests.helpers.made_records import make_about, make_metric, make_record, number

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
    assert suites == [("mini", "real"), ("smoke", "real"), ("smoke", "rehearsal"), ("mini", "synthetic")]
    for (preset, data), rows in together.groupby(["preset", "data"]):
        folder = tmp_path / f"{preset}-{'etth1' if data == 'real' else 'synthetic'}"
        expected = leaderboard(folder).set_index("attention")["index"]
        assert rows.set_index("attention")["index"].to_dict() == pytest.approx(expected.to_dict(), nan_ok=True)
        assert rows["index"].notna().all() == (data != "synthetic")


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
    assert [column.label for column in pattern_table([board], "NC").columns[:3]] == ["lstf", "rouge_1", "hits_10"]
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


def test_the_table_of_a_pattern(tmp_path: Path, add: Callable[..., Path]) -> None:
    """Best index first; the best value is marked, but not that of a baseline; pcc has one attention, so no index."""
    made: dict[str, Any] = {"preset": "mini", "dataset": "etth1", "config_variant": "", "pattern": "NS"}
    baselines = {"repeat": {"mse": 0.05, "mae": 0.05}}
    for attention, mse in (("abc", 0.3), ("vanilla", 0.1), ("linear", 0.2), ("gla", 0.9), ("s4d", 0.5)):
        add({"mse": mse, "mae": mse}, attention=attention, baselines=baselines, **made)
    add({"f_score": 0.4}, attention="local", task="pcc", backbone="pointr", **made)
    [board] = score_boards(load_results(tmp_path / "results"), normalization="results")
    table = pattern_table([board], "NS")
    labels = [row.label for row in table.rows]
    assert labels == ["vanilla", "linear", "abc", "s4d", "gla", "local", "repeat (trivial baseline)"]
    columns = {column.label: dict(zip(labels, column.cells, strict=True)) for column in table.columns}
    assert list(columns) == [
        *("all", "lstf", "pcc", "mse", "mae", "f_score (dB)"),
        *("parameters, M", "training time, s", "peak memory, MiB", "seeds"),
    ]
    assert (columns["mse"]["vanilla"].text, columns["mse"]["vanilla"].style) == ("0.1", "best")
    assert (columns["mse"][labels[-1]].text, columns["mse"][labels[-1]].style) == ("0.05", "")
    assert columns["lstf"]["local"].hint.startswith("lstf: missing: informer etth1 mse, informer etth1 mae")
    assert columns["parameters, M"]["vanilla"].text == "-", "it lacks pcc"
    assert table.notes[-1].startswith("-: ")


def test_published_rows_join_those_of_their_full_training(tmp_path: Path, add: Callable[..., Path]) -> None:
    """With the paper's constants, in one table; with those of the results, indices are not comparable."""
    place = {"task": "pcc", "dataset": "pcn", "config_variant": "", "backbone": "pointr", "preset": "paper"}
    for name in ("vanilla", "abc"):
        add({metric: number(name) for metric in ("cd_l1", "cd_l2", "f_score")}, attention=name, **place)
    results = load_results([tmp_path / "results", PAPER_DIR])
    for normalization, count in (("official", 1), ("results", 2)):
        boards = score_boards(results, normalization=normalization)
        groups = compared(boards, normalization=normalization)
        assert [board.preset for group, _ in groups for board in group] == ["paper", "published"]
        assert len(groups) == count
        if count == 1:
            labels = [row.label for row in pattern_table(groups[0][0], "NC").rows]
            assert {"abc", "abc (published)", "vanilla", "vanilla (published)"} <= set(labels)


def test_every_form_of_a_table_has_the_same_texts() -> None:
    """The best verified value is bold; a row that is not verified is neither bold nor tinted."""
    results = {"K": [100.0, 30.0, 90.0], "low": math.nan, "bound": [math.nan, 41.0, 120.0], "seeds": 3, "solved": 3}
    frame = pd.DataFrame({**results, "verdict": ["solved", "worse", "undecided"], "note": ["", "unfinished", ""]})
    cells = [gain(row) for row in frame.to_dict("records")]
    assert [cell.text for cell in cells] == ["3 of 3 solved", "≥ 30 (≤ 41) ▼", "90 ?"]
    errors = numbers([2.0, 1.0, 3.0])
    rows = [Row("a_b"), Row("c", verified="no"), Row("d")]
    table = Table(rows, [Column("K", cells, "higher"), Column("mse", errors, "lower", marks_best=True)])
    assert table.to_text().splitlines()[2].split() == ["†", "c", "≥", "30", "(≤", "41)", "▼", "1.000"]
    assert "| a\\_b | 3 of 3 solved | **2.000** |" in table.to_markdown()
    assert r"a\_b & 3 of 3 solved & \textbf{2.000} \\" in table.to_latex()
    assert r"\dag{} c & $\geq$ 30 ($\leq$ 41) $\bigtriangledown$ & 1.000 \\" in table.to_latex()
    html = str(table.to_html())
    assert '<td data-value="30.0" title="unfinished">≥ 30 (≤ 41) ▼</td>' in html
    assert '<td data-value="100.0" class="match">3 of 3 solved</td>' in html
    assert table.to_csv() == "attention,K,mse\na_b,100.0,2.0\nc,30.0,1.0\nd,90.0,3.0\n"
    [note] = table.notes
    assert [note.count(sign) for sign in "▼?*≥†"] == [1, 1, 0, 1, 1]
