"""The frame of results: its sources, and CSV files with the mistakes that a spreadsheet makes."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from cab.errors import UserError
from cab.records.files import PAPER_DIR, REFERENCE_DIRS
from cab.records.record import Record, records_in
from cab.results.cells import Anchors, suite_cells
from cab.results.costs import load_costs
from cab.results.guards import first_reference
from cab.results.load import COLUMNS, load, load_results, reduced, rows_of, runs_of
from cab.results.published import rows
from cab.results.summarize import metrics_table
from tests.helpers.command import Command
from tests.helpers.made_records import make_record
from tests.helpers.suite_records import (
    CELLS,
    made_anchors,
    made_suite as made_suite,
    suite_record,
    value_record,
    with_config,
)

CORE, MINI = REFERENCE_DIRS
HEAD = "pattern,task,backbone,dataset,metric,higher_is_better,attention,value"
CSV = f"{HEAD}\nNS,T,b,d,m,1,café,1\n"
UNREADABLE = {
    "utf-16": CSV.encode("utf-16"),
    "latin-1": CSV.encode("latin-1"),
    "binary": bytes(range(256)) * 9,
    "long field": CSV.replace("café", "a" * 140_000).encode(),
}


# --- sources ----------------------------------------------------------------------------------------------------------


def test_each_source_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the form of its path."""
    for seed in (1, 2):
        make_record({"mse": float(seed)}, seed=seed).write(tmp_path / "own")
    once = load_results([tmp_path / "own", MINI])
    (tmp_path / "link").symlink_to(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    again = load_results([tmp_path / "own", MINI, "own", "link", MINI / "../mini"])
    assert len(again) == len(once)
    relative = load_results(["own", tmp_path / "own"])
    assert metrics_table(relative)["seeds"].tolist() == [2]


def test_no_source_is_named_after_another(tmp_path: Path) -> None:
    make_record({"mse": 0.5}).write(tmp_path)
    frame = load([tmp_path, PAPER_DIR], with_reference=True).frame
    groups = frame.groupby(["source", "preset"]).size()
    assert set(groups.index) == {("own", "mini"), ("reference", "mini"), ("published", "published")}
    for kind, name, column in (("metric", "results.csv", "value"), ("index", "compositional_index.csv", "index")):
        texts = [row[column] for row in rows(name)]
        found = frame.loc[(frame["source"] == "published") & (frame["kind"] == kind), "value"]
        assert [*found] == pytest.approx([float(text or math.nan) for text in texts], abs=0, nan_ok=True)


def test_reference_results_are_added(tmp_path: Path) -> None:
    """Once, and an own record of the same cell and seed is a row of its own."""
    bundled = next(record for _, record in records_in(MINI, []) if record.cell["task"] == "lstf")
    names = {"dataset": "synthetic", "pattern": "CS", "config_variant": "M", "seed": 1, "data": bundled.data}
    mine = make_record({"mse": 0.5, "mae": 0.25}, **names)
    path = mine.write(tmp_path)
    frame = load([tmp_path, MINI], with_reference=True).frame
    assert not runs_of(frame).duplicated("hash").any()
    own = frame[frame["source"] == "own"]
    assert set(own["file"]) == {str(path)}
    assert set(own["attention"]) == {f"vanilla [{mine.attention_code[:8]}]"}
    assert set(load_results(MINI)["label"]) <= set(frame["attention"])


def test_the_first_reference_folder_of_a_place_counts() -> None:
    frame = load([], with_reference=True).frame
    kept = first_reference(frame)
    places = kept.groupby(["task", "dataset", "config_variant", "backbone", "pattern"])["file"]
    assert (places.agg(lambda files: len({Path(file).parent for file in files})) == 1).all()
    assert set(kept["file"]) > set(load_results(CORE)["file"])
    assert len(kept) < len(frame)


def test_the_reference_results_are_of_the_suite() -> None:
    assert set(load_results(MINI)["dataset"]) <= {cell.dataset for cell in suite_cells()}
    first, again = ([record for folder in REFERENCE_DIRS for _, record in records_in(folder, [])] for _ in range(2))
    assert all(one.config is other.config for one, other in zip(first, again, strict=True)), "read once"
    for record in first:
        assert record.config["data_root"] is None
        assert not Path(record.config["results_dir"]).is_absolute(), "a path of the machine that trained it"
        assert " results_dir=/" not in record.command


def test_the_leaderboard_shows_them_alone_where_nothing_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cab: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "| none" in cab("leaderboard", "--with-reference", "--format", "markdown").out
    cab("leaderboard", "--format", "markdown", status=2)


# --- facts of a run ---------------------------------------------------------------------------------------------------


def facts(record: Record) -> Mapping[str, object]:
    """The first row of a record."""
    [values, *_] = rows_of([(Path("run.json"), record)])
    return dict(zip(COLUMNS, values, strict=True))


@pytest.mark.parametrize(
    ("losses", "unfinished", "diverged"),
    [
        ([2.0, 1.5, 1.2, 1.1, 1.05], True, False),  # 2.5 points in the last fifth of the steps
        ([2.0, 1.5, 1.2, 1.1, 1.07], False, False),
        ([2.0, 1.5, 1.2, 1.1, 1.31], False, True),  # 10.5 points below the best
        ([2.0, 1.5, 1.2, 1.1, 1.29], False, False),
    ],
)
@pytest.mark.usefixtures("made_suite")
def test_training_that_is_unfinished_or_diverges(
    losses: list[float], unfinished: bool, diverged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K of the validation loss is 0 at 2.0 and 100 at 0.0; the budget is that of the cell."""
    known = made_anchors()
    anchors = known[CELLS["lstf"].key]
    with_loss = dataclasses.replace(anchors, validation={"vanilla": [0.0], "none": [2.0]})

    def found(record: Record, of_cell: Anchors) -> tuple[object, object]:
        monkeypatch.setattr("cab.results.cells.read_anchors", lambda: known | {CELLS["lstf"].key: of_cell})
        about = facts(record)
        assert about["reason"] == ""
        return about["unfinished"], about["diverged"]

    record = suite_record("lstf", "abc", 50)
    budget = record.config["trainer"]["max_steps"]
    entries = [{"step": budget * n // 5, "loss": 1.0, "validation": loss} for n, loss in enumerate(losses, 1)]
    record = dataclasses.replace(record, history=entries)
    for read in (record, reduced(record)):
        assert found(read, with_loss) == (unfinished, diverged)
    assert len(reduced(record).history) == 3
    solved = dataclasses.replace(record, cost=dataclasses.replace(record.cost, steps_to_solve=400))
    assert found(solved, with_loss) == (False, False)
    assert found(record, anchors) == (False, False), "no anchors of the loss"


@pytest.mark.usefixtures("made_suite")
def test_few_slots_are_noted() -> None:
    """Four slots for 64 facts; a memory of another kind has no such limit."""
    assert facts(suite_record("probe", "abc", 10))["slots"] == ""
    few = suite_record("probe", "abc", 10)
    few = with_config(few, attention={**few.config["attention"], "num_landmarks": 4})
    assert facts(few)["slots"] == "4 slots for 64 facts"


@pytest.mark.usefixtures("made_suite")
@pytest.mark.parametrize("value", [math.nan, 0.0])
def test_a_value_without_k_has_a_reason(value: float) -> None:
    """A loss of 0 has no logarithm."""
    [cell] = [cell for cell in CELLS.values() if cell.scale == "log"]
    about = facts(value_record(cell, "abc", value))
    assert (about["reason"], math.isnan(float(str(about["K"])))) == (f"seed 1 has no valid {cell.metric}", True)


# --- CSV files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [load_results, load_costs])
@pytest.mark.parametrize("name", [*UNREADABLE, "pipe"])
def test_a_table_that_cannot_be_read_is_one_line(name: str, read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(UNREADABLE[name]) if name in UNREADABLE else os.mkfifo(path)
    with pytest.raises(UserError, match=r"table\.csv") as error:
        read(path)
    assert "\n" not in str(error.value)


def test_the_byte_order_mark_of_a_spreadsheet_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(CSV.encode("utf-8-sig"))
    assert load_results(tmp_path / "table.csv")["attention"].tolist() == ["café"]


def test_line_breaks_of_names_are_not_printed(tmp_path: Path, cab: Command) -> None:
    rows = [f'NS,T,b,"d\ne",m,1,{name},{value}' for value, name in enumerate(["vanilla", *"abcd"])]
    (tmp_path / "table.csv").write_text("\n".join([HEAD, *rows]))
    assert "  T: m of b d\ufffde\n" in cab("score", tmp_path / "table.csv", "--normalization", "results").out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("NS,T,b,d,m,maybe,abc,1", "higher_is_better 1 or 0, got 'maybe'"),
        ("NS,T,b,d,m,1,abc,lots", "line 2: .*'lots'"),
        *((f"NS,T,b,d,m,1,abc,{value}", f"line 2: value must be .*'{value}'") for value in ("1e39", "1e400", "nan")),
        ('NS,T,b,d,m,1,abc,"0,5"', "line 2: .*'0,5'"),
        ("XX,T,b,d,m,1,abc,1", "line 2: the pattern must be one of NS, CS, NC, CC, got 'XX'"),
        ("ns,T,b,d,m,1,abc,1", "line 2: the pattern must be one of"),
        ("NS,T,b,d,m,1,,1", "line 2: no attention"),
        ("NS,T,b,d,m,1, ,1", "line 2: no attention"),
        ("NS,T,b,d,m,1,abc", "line 2: 7 values for 8 columns"),
        ("NS,T,b,d,m,1,abc,1,9", "line 2: 9 values for 8 columns"),
        ("NS;T;b;d;m;1;abc;1", "line 2: 1 value for 8 columns"),
        ("NS,T,b,d,m,1,abc,1\nNS,T,b,d,m,1,abc,2", "line 3: the result of line 2 again"),
        ('NS,T,b,d,m,1,"abc,1', "table.csv cannot be read as CSV"),
    ],
)
def test_broken_published_rows(tmp_path: Path, line: str, message: str) -> None:
    assert re.search(message, refusal(tmp_path, f"{HEAD}\n{line}\n"))


def refusal(folder: Path, text: str) -> str:
    """The error for a table with this text."""
    (folder / "table.csv").write_text(text)
    with pytest.raises(UserError) as error:
        load_results(folder / "table.csv")
    return str(error.value)


@pytest.mark.parametrize("seed", ["-5", "1.5", "9" * 450, "one", " 1", "²"])
def test_a_seed_is_a_natural_number(seed: str, tmp_path: Path) -> None:
    message = refusal(tmp_path, f"{HEAD},seed\nNS,T,b,d,m,1,abc,1,{seed}\n")
    assert re.search(r"table\.csv, line 2: .*seed a natural number", message)


def test_columns_occur_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, f"{HEAD},value\nNS,T,b,d,m,1,abc,1,2\n")
    assert "line 1: the column 'value' occurs more than once" in message


def test_values_without_a_preset_count_as_published_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, row = tmp_path / "own.csv", "NS,sr,sr3,ffhq,psnr,1,a,2.0"
    path.write_text(f"{HEAD}\n{row}\n")
    assert load_results(path)["source"].tolist() == ["published"]
    assert caplog.messages == [
        f"{path} has no column 'preset', so its values count as published; for your own, add it, with the value paper"
    ]
    caplog.clear()
    path.write_text(f"{HEAD},preset\n{row},paper\n")
    assert load_results(path)["source"].tolist() == ["own"]
    load_results("results/paper")
    assert caplog.messages == []
