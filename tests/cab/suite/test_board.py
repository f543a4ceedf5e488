"""The board of the suite: its rows, its main finding, its CSV file and its page."""

from __future__ import annotations

import csv
import json
import re
from html import unescape
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.records.record import REFERENCE_DIRS
from cab.records.results import load_results
from cab.reports.board_tables import board_table
from cab.reports.figures import frontier_figure
from cab.reports.suite_board import SuiteBoard, main_finding, single_seeds, suite_board
from cab.reports.tables import PINNED
from cab.scoring.costs import measured_costs
from cab.suite.cells import cell_descriptions, metric_meanings, suite_cells
from tests.cab.suite.suite_records import CELLS, made_suite as made_suite, seeds, suite_record

COSTS = [(pattern, name) for pattern in ("NS", "CS") for name in ("time", "memory")]


@pytest.fixture
def folders(made_suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The reference results, and own ones of two attentions: one in all cells, one with a single seed."""
    monkeypatch.setattr("cab.reports.suite_board.REFERENCE_DIRS", (made_suite,))
    own = [run for task in CELLS for run in seeds(task, "mine", 80)]
    own += [suite_record(task, "single", 70) for task in CELLS]
    for record in own:
        record.write(tmp_path / "own")
    return [made_suite, tmp_path / "own"]


def board_of(folders: list[Path]) -> SuiteBoard:
    board = suite_board(load_results(folders))
    assert board is not None
    return board


def test_rows_and_marks(folders: list[Path]) -> None:
    board = board_of(folders)
    assert list(board.table["attention"])[:2] == ["vanilla", "abc"]
    assert list(board.table["attention"])[-2:] == ["gla", "ssd"], "without all core cells"
    table = board_table(board)
    assert [(row.label, row.detail) for row in table.bodies[PINNED]] == [("mine", "yours"), ("single", "yours")]
    column = [each.label for each in table.columns].index("K CS")
    cells = {row.label: row.cells[column] for row in table.rows}
    assert [name for name, cell in cells.items() if cell.best] == ["vanilla", "abc"]
    assert (cells["gla"].text, cells["gla"].value) == ("1 of 3 cells", None)
    assert (cells["single"].text, cells["single"].detail) == ("70.0*", "")
    assert re.fullmatch(r"[\d.]+ to [\d.]+", cells["mine"].detail)


def test_the_main_finding(folders: list[Path]) -> None:
    """abc is equivalent to vanilla; an attention with a single seed is not counted."""
    finding = main_finding(board_of(folders))
    assert re.fullmatch(
        r"Of the subquadratic attentions, 1 of 3 in CS \(abc, [\d.]+ times softmax's time at 8,192 tokens\) match "
        r"softmax attention in retrieval\. Of the other attentions, 0 of 1 in CS match softmax attention in "
        r"retrieval\. "
        r"Not counted: 1 result with a single seed\.",
        finding,
    )


@pytest.mark.usefixtures("made_suite")
def test_the_main_finding_without_complete_results(tmp_path: Path) -> None:
    suite_record("lm", "abc", 50).write(tmp_path / "some")
    finding = main_finding(board_of([tmp_path / "some"]))
    assert finding == "No attention has results with several seeds in every core cell of a pattern."
    for name in ("luong", "abc"):
        for task in CELLS:
            suite_record(task, name, 50).write(tmp_path / "all")
    single = main_finding(board_of([tmp_path / "all"]))
    assert single == f"{finding} Not counted: 2 results with a single seed."


def test_page_and_csv_have_the_same_numbers(folders: list[Path], tmp_path: Path) -> None:
    """Costs are those of each pattern; one block per cell describes what it tests."""
    out = tmp_path / "out"
    assert main(["leaderboard", *map(str, folders), "--out", str(out)]) == 0
    page = (out / "index.html").read_text()
    shown = re.search(r'<table id="suite-board-table">(.*?)</table>', page, re.DOTALL)
    assert shown is not None
    rows = {}
    for name, cells in re.findall(r'<tr data-name="(.*?)".*?</th>(.*?)</tr>', shown[1], re.DOTALL):
        rows[unescape(name)] = re.findall(r'<td(?: data-value="([^"]*)")?( class="best")?>(.*?)</td>', cells, re.DOTALL)
    table = {row["attention"]: row for row in csv.DictReader((out / "suite.csv").open())}
    assert rows.keys() == table.keys()
    columns = [each.label for each in board_table(board_of(folders)).columns]
    fields = {"K CS": "CS.K", "worst cell": "worst_cell_K", "state": "state_bytes", "params": "parameters_vs_softmax"}
    fields |= {"time NS": "NS.time_8192_vs_softmax", "memory CS": "CS.memory_8192_vs_softmax"}
    for name, cells in rows.items():
        shown_values = dict(zip(columns, cells, strict=True))
        for label, field in fields.items():
            value, expected = shown_values[label][0], table[name][field]
            assert float(value or "nan") == pytest.approx(float(expected or "nan"), nan_ok=True)
        assert bool(shown_values["K CS"][1]) == (table[name]["CS.not_worse_than_best"] == "True")
        solved = int(table[name]["solved"]) / int(table[name]["runs"])
        assert float(shown_values["solved"][0]) == solved
    costs = {(pattern, name): getattr(measured_costs()["abc", pattern], name) for pattern, name in COSTS}
    found = {(pattern, name): float(table["abc"][f"{pattern}.{name}_8192_vs_softmax"]) for pattern, name in COSTS}
    assert found == pytest.approx(costs)
    assert len(set(found.values())) == 4
    assert float(table["abc"]["state_bytes"]) == measured_costs()["abc", "CS"].state_bytes
    blocks = re.findall(r"<details>\n<summary><strong>(.*?)</strong> (.*?) <small>(.*?)</small>", page)
    assert [name for name, _, _ in blocks] == [str(cell) for cell in suite_cells() if cell in CELLS.values()]
    assert {remark for _, _, remark in blocks} == {"core cell"}
    assert all(unescape(text) in cell_descriptions().values() for _, text, _ in blocks)


def test_single_seeds_are_hollow(folders: list[Path]) -> None:
    board = board_of(folders)
    points = {"abc": (0.1, 99.0), "single": (0.2, 70.0)}
    figure = frontier_figure(points, title="", label="", single=single_seeds(board, "CS"))
    _, *dots = figure.axes[0].lines
    assert [dot.get_fillstyle() for dot in dots] == ["full", "none"]


def test_the_score_prints_k_of_results_with_probes(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", *map(str, folders)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert float(next(row for row in rows if row[:1] == ["abc"])[1]) > 95


def test_every_cell_and_metric_is_described() -> None:
    assert {cell.key for cell in suite_cells()} == cell_descriptions().keys()
    assert {(cell.task, cell.metric) for cell in suite_cells()} <= metric_meanings().keys()
    reported = {
        (record["cell"]["task"], metric["name"])
        for folder in REFERENCE_DIRS
        for record in (json.loads(path.read_text()) for path in folder.glob("*.json"))
        for metric in record["metrics"]
        if metric["at_length"] is None
    }
    assert reported <= metric_meanings().keys()
