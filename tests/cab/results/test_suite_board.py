"""The board of the suite: its rows, its main sentence, its CSV file and its page."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Iterable
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cab.records.files import PAPER_DIR, REFERENCE_DIRS
from cab.registry.registries import ATTENTIONS
from cab.results import page
from cab.results.cells import cell_descriptions, metric_meanings, suite_cells
from cab.results.costs import TOKENS, suite_state, suite_states
from cab.results.figures import frontier, frontier_figure
from cab.results.formats import Cell
from cab.results.load import OWN, load, load_results
from cab.results.suite_board import (
    OTHER,
    Suite,
    board_table,
    families,
    findings,
    main_sentence,
    recall_points,
    state_size,
    suite_csv,
    suite_of,
)
from cab.results.table import write_csv
from tests.helpers.command import Command
from tests.helpers.suite_records import CELLS, made_suite as made_suite, seeds, suite_record
from tools.site.readme_figure import reference_suite

OUTPUT = Path(__file__).parents[2] / "golden" / "output"


@pytest.fixture
def folders(made_suite: Path, tmp_path: Path) -> list[Path]:
    """The reference results, and own ones of two attentions: one in all cells, one with a single seed."""
    own = [run for task in CELLS for run in seeds(task, "mine", 80)]
    own += [suite_record(task, "single", 70) for task in CELLS]
    for record in own:
        record.write(tmp_path / "own")
    return [made_suite, tmp_path / "own"]


def made(folders: Iterable[Path]) -> Suite:
    suite = suite_of(load_results(folders))
    assert suite is not None
    return suite


def cells_of(suite: Suite, heading: str) -> dict[str, Cell]:
    """The cells of a column of the board's table by attention."""
    table = board_table(suite)
    [column] = [column for column in table.columns if column.label == heading]
    return {row.label: cell for row, cell in zip(table.rows, column.cells, strict=True)}


def test_rows_are_in_families(folders: list[Path]) -> None:
    suite = made(folders)
    board = suite.board
    assert board.groupby("family", sort=False)["attention"].agg(list).to_dict() == {
        "softmax and variants": ["vanilla"],
        "constant state": ["linear", "gla", "ssd"],
        "slots and landmarks": ["abc"],
        "windows": ["local"],
        "no attention": ["none"],
        OTHER: ["mine", "single"],
    }
    assert set(board.loc[board["own"], "attention"]) == {"mine", "single"}
    table = board_table(suite)
    assert [row.label for row in table.rows[:3]] == ["mine", "single", "vanilla"], "yours are first"
    assert [column.label for column in table.columns[1:4]] == ["recall CS", "lookup CS", "periodic copy CS"]
    assert table.rows[0].tags == ["CS"], "no state is known"


def test_signs(folders: list[Path]) -> None:
    """A significant loss, the ceiling, a single seed; bold is what matches softmax attention."""
    cells = cells_of(made(folders), "periodic copy CS")
    assert {name for name, cell in cells.items() if "best" in cell.style} == {"vanilla", "abc", "ssd"}
    texts = {name: cells[name].text for name in ("abc", "mine", "single", "gla")}
    assert texts == {"abc": "3 of 3 solved", "mine": "80 (≤ 81) ▼", "single": "70*", "gla": "30 (≤ 31) ▼"}
    assert {name: cells[name].style.split()[0] for name in texts} == {
        "abc": "match",
        "mine": "worse",
        "single": "single",
        "gla": "worse",
    }


def test_a_row_that_is_not_verified_has_no_tint(folders: list[Path]) -> None:
    for task in CELLS:
        for record in seeds(task, "unverified", 100, verified=False):
            record.write(folders[1])
    suite = made(folders)
    assert {cells_of(suite, f"{cell.ability} CS")["unverified"].style for cell in CELLS.values()} == {""}
    assert "† unverified" in board_table(suite).to_text()


def test_the_state_is_that_of_the_same_networks(folders: list[Path]) -> None:
    suite = made(folders)
    board = suite.board
    sizes = dict(zip(board["attention"], state_size(board), strict=True))
    assert (sizes["vanilla"], sizes["linear"]) == (64 * TOKENS, 1056)
    assert np.isnan(sizes["mine"])
    assert cells_of(suite, "state")["vanilla"].value == 64 * TOKENS
    points = recall_points(board, state_size(board))
    assert points.loc["linear"].tolist() == [1056, pytest.approx(95), False, False]
    assert not points["own"].any(), "without a state"


def test_the_table_of_states_is_what_is_measured() -> None:
    for name in ("linear", "local", "mla"):
        assert suite_state(ATTENTIONS.get(name)) == suite_states()[name], "run python -m tools.suite.tables"
    assert suite_state(ATTENTIONS.get("linformer")) is None


def test_families_are_of_registered_attentions() -> None:
    assert set(families()) <= set(ATTENTIONS.names())


def test_yours_are_your_records(folders: list[Path]) -> None:
    """One own run of abc neither makes the reference results the user's, nor is it averaged or judged with them."""
    suite_record("lstf", "abc", 97, 9).write(folders[1])
    suite = made(folders)
    [verdict] = page._suite(suite)["own"]["abc"]
    assert verdict.startswith("abc, pattern CS: 1 of 3 core cells")
    assert "periodic copy, lstf informer CS: K 97.0*, not tested\n" in verdict
    rows = suite.board[suite.board["attention"] == "abc"].set_index("own")
    assert rows["CS.periodic_copy.K"].to_dict() == {False: pytest.approx(99.9), True: pytest.approx(97)}
    assert rows["CS.periodic_copy.seeds"].to_dict() == {False: 3, True: 1}


def test_your_runs_follow_all_reference_results(folders: list[Path]) -> None:
    """Each row once, also if the results contain the reference results."""
    for given in (folders[1:], folders):
        frame = load(given, with_reference=True).frame
        assert list(frame.loc[frame["source"] == OWN, "attention"].unique()) == ["mine", "single"]
        assert not frame.duplicated(["file", "metric"]).any()
        suite = suite_of(frame)
        assert suite is not None
        assert set(suite.board["attention"]) == set(made(folders).board["attention"])


def test_the_main_sentence(folders: list[Path]) -> None:
    suite = made(folders)
    sentence = main_sentence(suite)
    assert findings(suite)[0].endswith(" (abc) matches it."), "two lines on the page"
    assert sentence.startswith(
        "Of 3 attentions with a constant-size decode state, 2 are worse than softmax attention in causal recall, 1 "
        "(abc) matches it. Of 64 facts, abc retains 99%, linear retains 95%, local retains 3% (at least 3 seeds each)."
    )


def test_own_rows_that_change_no_sentence(folders: list[Path]) -> None:
    """An unverified result, a single seed, a tuned learning rate, and a reference that is trained again."""
    before = main_sentence(made(folders))
    records = [*seeds("probe", "rfa(tuned)", 99.9), suite_record("probe", "rfa", 99.9), *seeds("probe", "local", 99)]
    records += [dataclasses.replace(run, verified=False) for run in seeds("probe", "gla", 99.9)]
    for record in records:
        record.write(folders[1])
    suite = made(folders)
    assert suite.board.set_index("attention")["own"]["rfa"]
    assert main_sentence(suite) == before


@pytest.mark.usefixtures("made_suite")
def test_the_sentence_without_results(tmp_path: Path) -> None:
    suite_record("probe", "abc", 50).write(tmp_path / "some")
    assert main_sentence(made([tmp_path / "some"])) == (
        "No attention with a constant-size state, verified code and several seeds has results in recall."
    )


def test_page_and_csv_have_the_same_numbers(folders: list[Path], tmp_path: Path, cab: Command) -> None:
    """One block per cell describes what it tests."""
    out = tmp_path / "out"
    cab("leaderboard", *folders, "--out", out)
    html = (out / "index.html").read_text()
    shown = re.search(r'<table id="suite-board-table">(.*?)</table>', html, re.DOTALL)
    assert shown is not None
    rows = {}
    for name, cells in re.findall(r'<tr data-name="(.*?)".*?</th>(.*?)</tr>', shown[1], re.DOTALL):
        rows[unescape(name)] = re.findall(
            r'<td(?: data-value="([^"]*)")?(?: class="([^"]*)")?(?: title="[^"]*")?>(.*?)</td>', cells, re.DOTALL
        )
    table = {row["attention"]: row for row in csv.DictReader((out / "suite.csv").open())}
    assert rows.keys() == table.keys()
    columns = [each.label for each in board_table(made(folders)).columns]
    fields = {
        "recall CS": "CS.recall.K",
        "periodic copy CS": "CS.periodic_copy.K",
        "steps CS": "CS.recall.steps_vs_softmax",
    }
    fields |= {"time NS": "NS.time_8192_vs_softmax", "memory CS": "CS.memory_8192_vs_softmax"}
    for name, cells in rows.items():
        shown_values = dict(zip(columns, cells, strict=True))
        for label, field in fields.items():
            value, expected = shown_values[label][0], table[name][field]
            assert float(value or "nan") == pytest.approx(float(expected or "nan"), abs=1e-6, nan_ok=True)
        assert ("best" in shown_values["recall CS"][1]) == (table[name]["CS.recall.best"] == "yes")
        assert ("worse" in shown_values["recall CS"][1]) == (table[name]["CS.recall.vs_softmax"] == "worse")
    blocks = re.findall(r"<details>\n<summary><strong>(.*?)</strong> (.*?)</summary>\n\s*<(?:div|p)", html)
    assert [name for name, _ in blocks] == [str(cell) for cell in suite_cells() if cell in CELLS.values()]
    texts = [text for _, text in blocks]
    assert all(any(unescape(text).startswith(each) for each in cell_descriptions().values()) for text in texts)
    assert (
        html.index("Your results") < html.index("mine, pattern CS: 3 of 3 core cells") < html.index("gain retained, %")
    )
    assert "recall, probe mixer CS: worse than softmax attention, K 80.0, at most 8" in html
    assert "recall, probe mixer CS: K 70.0*, not tested\n" in html
    assert '<option value="CS" selected>' in html
    single = sum(float(row[name] or 0) == 1 for row in table.values() for name in row if name.endswith(".seeds"))
    assert f"<li>{single} of " in html
    assert len(re.findall("<figure>", html)) == 2


def test_every_mark_of_a_figure_has_a_name() -> None:
    """Names neither overlap nor leave the axes; marks of single seeds are hollow, with a star at the name."""
    board = reference_suite().board
    points = recall_points(board, state_size(board))
    points.loc["single"], points.loc["mine (yours)"] = [2e3, 70.0, False, True], [2e3, 71.0, True, False]
    figure = frontier_figure(points, title="", label="")
    [axes] = figure.axes
    names = [name for text in axes.texts for name in text.get_text().split("\n")]
    assert sorted(names) == sorted(points.index + points["single"].map({True: "*", False: ""}))
    shared = {"mine (yours)", "single*"}
    assert any(shared <= set(text.get_text().split("\n")) for text in axes.texts), "one label for overlapping marks"
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert not any(box.count_overlaps(boxes) > 1 for box in boxes)
    assert all(axes.bbox.padded(1).contains(*box.min) and axes.bbox.padded(1).contains(*box.max) for box in boxes)
    lines = [(np.asarray(line.get_xydata()), line) for line in axes.lines]
    marks = {tuple(map(float, places[0])): line for places, line in lines if len(places) == 1}
    assert marks[2e3, 70.0].get_fillstyle() == "none"
    assert marks[2e3, 71.0].get_marker() == "D"


def test_every_cell_and_metric_is_described() -> None:
    assert {cell.key for cell in suite_cells()} == cell_descriptions().keys()
    assert {(cell.task, cell.metric) for cell in suite_cells()} <= metric_meanings().keys()
    reported = {
        (record["cell"]["task"], metric["name"])
        for folder in REFERENCE_DIRS
        for record in map(json.loads, (folder / "records.jsonl").read_text().splitlines())
        for metric in record["metrics"]
        if metric["at_length"] is None
    }
    assert reported <= metric_meanings().keys()


def test_the_table_of_the_reference_results_is_the_stored_one(tmp_path: Path) -> None:
    """tests/golden has it, and compares that of `cab leaderboard results/core` with it."""
    write_csv(suite_csv(made(REFERENCE_DIRS).board), tmp_path / "suite.csv")
    assert (tmp_path / "suite.csv").read_text() == (OUTPUT / "leaderboard_core_suite.csv").read_text()


def test_published_results_have_no_runs_and_no_board() -> None:
    frame = load_results(PAPER_DIR)
    assert OWN not in set(frame["source"])
    assert suite_of(frame) is None


def test_the_frontier() -> None:
    points = {"fast": (0.1, 50), "slow": (1.0, 100), "worse": (0.2, 40), "equal": (0.1, 30), "best": (0.5, 90)}
    assert frontier(pd.DataFrame(points, index=["cost", "K"]).T) == ["fast", "best", "slow"]
