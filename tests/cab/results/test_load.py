"""The frame of results: its sources, and CSV files with the mistakes that a spreadsheet makes."""

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from cab.errors import UserError
from cab.records.files import PAPER_DIR, REFERENCE_DIRS
from cab.records.record import Record
from cab.results.costs import load_costs
from cab.results.guards import first_reference
from cab.results.load import FRAME_COLUMNS, load, load_results, reduced, rows_of, runs_of
from cab.results.summarize import metrics_table
from tests.helpers.made_records import bundled, make_record
from tests.helpers.suite_records import CELLS, made_anchors, made_suite as made_suite, suite_record, value_record

CORE, MINI = REFERENCE_DIRS
HEAD = "pattern,task,backbone,dataset,metric,higher_is_better,attention,value"
INDEX = "pattern,task,attention,index"
COSTS = "attention,pattern,phase,length,seconds,bytes"
CSV = f"{HEAD}\nNS,T,b,d,m,1,café,1\n"
LONG_FIELD = CSV.replace("é", "a" * 140_000).encode()


def test_each_source_is_read_once(tmp_path, monkeypatch):
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


def test_reference_results_are_added(tmp_path):
    """Once, and an own record of the same cell and seed is a row of its own."""
    names = {"dataset": "synthetic", "pattern": "CS", "config_variant": "M", "seed": 1}
    names["data"] = bundled(MINI, task="lstf").data
    mine = make_record({"mse": 0.5, "mae": 0.25}, **names)
    path = mine.write(tmp_path)
    frame = load([tmp_path, MINI], with_reference=True).frame
    assert not runs_of(frame).duplicated("hash").any()
    own = frame[frame["source"] == "own"]
    assert set(own["file"]) == {str(path)}
    assert set(own["attention"]) == {f"vanilla [{mine.attention_code[:8]}]"}
    assert set(load_results(MINI)["label"]) <= set(frame["attention"])


def test_the_first_reference_folder_of_a_place_counts():
    frame = load([], with_reference=True).frame
    kept = first_reference(frame)
    places = kept.groupby(["task", "dataset", "config_variant", "backbone", "pattern"])["file"]
    assert (places.agg(lambda files: len({Path(file).parent for file in files})) == 1).all()
    assert set(kept["file"]) > set(load_results(CORE)["file"])
    assert len(kept) < len(frame)


def facts(record: Record) -> Mapping[str, object]:
    [values, *_] = rows_of([(Path("run.json"), record)])
    return dict(zip(FRAME_COLUMNS, values, strict=True))


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
def test_training_that_is_unfinished_or_diverges(losses, unfinished, diverged, monkeypatch):
    """K of the validation loss is 0 at 2.0 and 100 at 0.0; the budget is that of the cell."""
    anchors = made_anchors()[CELLS["lstf"].key]
    with_loss = dataclasses.replace(anchors, validation={"vanilla": [0.0], "none": [2.0]})
    monkeypatch.setattr("cab.results.cells.read_anchors", lambda: {CELLS["lstf"].key: with_loss})
    record = suite_record("lstf", "abc", 50)
    budget = record.config["trainer"]["max_steps"]
    entries = [{"step": budget * n // 5, "loss": 1.0, "validation": loss} for n, loss in enumerate(losses, 1)]
    record = dataclasses.replace(record, history=entries)
    solved = dataclasses.replace(record, cost=dataclasses.replace(record.cost, steps_to_solve=400))
    expected = (unfinished, diverged)
    for run, of_run in ((record, expected), (reduced(record), expected), (solved, (False, False))):
        about = facts(run)
        assert (about["reason"], about["unfinished"], about["diverged"]) == ("", *of_run)


@pytest.mark.usefixtures("made_suite")
@pytest.mark.parametrize("value", [math.nan, 0.0])
def test_a_value_without_k_has_a_reason(value):
    """A loss of 0 has no logarithm."""
    [cell] = [cell for cell in CELLS.values() if cell.scale == "log"]
    about = facts(value_record(cell, "abc", value))
    assert (about["reason"], math.isnan(float(str(about["K"])))) == (f"seed 1 has no valid {cell.metric}", True)


@pytest.mark.parametrize("content", [CSV.encode("utf-16"), CSV.encode("latin-1"), bytes(range(256)) * 9, LONG_FIELD])
def test_a_table_that_cannot_be_read_is_one_line(content, tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"table\.csv") as error:
        load_results(path)
    assert "\n" not in str(error.value)


def test_the_byte_order_mark_of_a_spreadsheet_is_no_text(tmp_path):
    (tmp_path / "table.csv").write_bytes(CSV.encode("utf-8-sig"))
    assert load_results(tmp_path / "table.csv")["attention"].tolist() == ["café"]


MISTAKES = {
    HEAD: """
NS,T,b,d,m,maybe,abc,1 -> higher_is_better 1 or 0, got 'maybe'
NS,T,b,d,m,1,abc,1e39 -> got '1e39'
XX,T,b,d,m,1,abc,1 -> line 2: the pattern must be one of NS, CS, NC, CC, got 'XX'
NS,T,b,d,m,1, ,1 -> line 2: no attention
NS,T,b,d,m,1,abc -> line 2: 7 values for 8 columns
NS,all (mine),b,d,m,1,abc,1 -> a task cannot be called 'all'
NS,T,b,d,m,1,abc,1;NS,T,b,d,m,1,abc,2 -> line 3: the result of line 2 again
NS,T,b,d,m,1,"abc,1 -> cannot be read as CSV
""",
    f"{HEAD},value": "NS,T,b,d,m,1,abc,1,2 -> line 1: the column 'value' occurs more than once",
    f"{HEAD},seed": """
NS,T,b,d,m,1,abc,1,-5 -> seed a natural number
NS,T,b,d,m,1,abc,1,² -> seed a natural number
""",
    f"{INDEX},preset": "NS,lm,abc,0.5,paper -> an index of preset paper: only published ones are read",
    COSTS: """
 -> contains no costs
abc,NS,forward,256,fast,1 -> line 2: seconds must be a finite number of at least 0, or empty, got 'fast'
abc,NS,forward,256,1,1e39 -> bytes must be a finite number
abc,NS,forward,0,1,1 -> line 2: the length must be a positive whole number
abc,NS,forward,,1,1 -> line 2: no length
abc,XX,forward,1,1,1 -> line 2: the pattern must be one of NS, CS, NC, CC, got 'XX'
abc,NS,forward,256,1,1;abc,NS,forward,256,1,1 -> line 3: the costs of line 2 again
""",
    f"{COSTS},kind": "abc,NS,forward,256,1,1,peer -> contains no costs",
    "attention,length,time_ms": "abc,5,1 -> line 2: no column bytes, pattern, phase, seconds; required",
}
"""Rows after each header, and words of the error."""
ROWS = [(header, line) for header, lines in MISTAKES.items() for line in lines.strip("\n").split("\n")]


@pytest.mark.parametrize(("header", "mistake"), ROWS)
def test_a_broken_row_is_refused(header, mistake, tmp_path):
    rows, _, words = mistake.partition(" -> ")
    path = tmp_path / "table.csv"
    path.write_text("\n".join([header, *filter(None, rows.split(";"))]) + "\n")
    with pytest.raises(UserError, match=re.escape(words)):
        (load_results if header.startswith("pattern") else load_costs)(path)


def test_values_without_a_preset_count_as_published_with_a_warning(tmp_path, caplog):
    path, row = tmp_path / "own.csv", "NS,sr,sr3,ffhq,psnr,1,a,2.0"
    path.write_text(f"{HEAD}\n{row}\n")
    assert load_results(path)["source"].tolist() == ["published"]
    warning = "has no column 'preset', so its values count as published; for your own, add it, with the value paper"
    assert caplog.messages == [f"{path} {warning}"]
    caplog.clear()
    path.write_text(f"{HEAD},preset\n{row},paper\n")
    assert load_results(path)["source"].tolist() == ["own"]
    load_results(PAPER_DIR)
    assert caplog.messages == []
