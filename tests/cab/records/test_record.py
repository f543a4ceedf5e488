"""Records: what is written is what is read, and what is broken is said in one line."""

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from cab import UserError
from cab.metric import Metric
from cab.records.files import COMMITTED_DIRS, record_paths
from cab.records.record import Record, RunCost, Status, records_in, with_checksum
from tests.helpers.made_records import make_about, make_record
from tools.results.bundle import bundle


def rewritten(path: Path, **changes: Any) -> Path:
    """The record at ``path`` with values replaced, ``cell__seed`` within a part, and a seal that fits them."""
    content = json.loads(path.read_text())
    for place, value in changes.items():
        part, _, name = place.partition("__")
        content[part] = {**content[part], name: value} if name else value
    path.write_text(json.dumps(with_checksum(content)))
    return path


def nested(depth: int) -> Any:
    return {"in": nested(depth - 1)} if depth else 1


NAMES = ("task", "dataset", "backbone", "pattern", "preset", "attention")
MSE = {"name": "mse", "unit": "", "higher_is_better": True}


def test_what_is_written_is_read(tmp_path):
    record = make_record({"mse": 0.1 + 0.2, "mae": None}, unscored=["mae"], baselines={"naive": {"mse": 2.5}})
    path = record.write(tmp_path)
    assert path == tmp_path / f"{record.hash}.json"
    assert Record.read(path) == record
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))  # in another layout
    assert Record.read(path) == record


def test_a_failed_run_has_the_same_keys(tmp_path):
    declared = [Metric("mse", "", higher_is_better=False), Metric("mse_512", "", higher_is_better=False, at_length=512)]
    why = {"status": Status.OOM, "error": MemoryError("none\nleft"), "step": 3}
    record = Record.failed(make_about(), metrics=declared, cost=RunCost(steps=3), **why)
    written = json.loads(record.write(tmp_path / "failed").read_text())
    finished = json.loads(make_record({"mse": 1.0}).write(tmp_path).read_text())
    assert written.keys() == finished.keys()
    assert written["cost"].keys() == finished["cost"].keys()
    assert written["error"] == "MemoryError: none"
    assert [(m["value"], m["at_length"]) for m in written["metrics"]] == [(None, None), (None, 512)]
    assert Record.read(tmp_path / "failed" / f"{record.hash}.json") == record


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_a_measured_value_is_finite_or_none(value):
    metric = Metric("mse", "", higher_is_better=False, at_length=512)
    assert metric.measured(value) == metric
    assert metric.measured(2).value == 2.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": 2}, "not a result record of schema 6"),
        ({"schema": 7}, "has schema 7, of a newer version of CAB; upgrade CAB"),
        ({"energy": 3}, "unknown fields: energy"),
        ({"status": "done"}, "status"),
        ({"status": "diverged", "metrics": [MSE | {"value": 1.0}]}, "it has a score, but its status is diverged"),
        ({"verified": "yes"}, "verified"),
        ({"started": "yesterday"}, "yesterday"),
        ({"step": -3}, "step"),
        ({"metrics": [MSE | {"higher_is_better": 1}]}, "higher_is_better"),
        ({"metrics": [MSE | {"value": math.nan}]}, "metrics.0.value"),
        ({"metrics": [MSE | {"at_length": 0}]}, "at_length"),
        ({"metrics": [MSE | {"name": "\ud800"}]}, "not a valid result record"),
        ({"cost": {"train_seconds": -0.5}}, "train_seconds"),
        ({"cost": {"euros\n\x1e": 1}}, r"euros \\x1e"),
        ({"history": [{"step": 1.5}]}, "a step in its history is not an integer"),
        ({"config": nested(500)}, "not a valid result record"),
        *(({f"cell__{name}": "other"}, f"its cell has {name} 'ot") for name in NAMES),
        ({"cell__seed": 3}, "its cell has seed 3, its configuration 0"),
        ({"task_version": 99}, "its version of the task is 99, but that is not what its hash"),
        ({"hash": "0" * 16}, r"its hash is 0000000000000000, that of its configuration \w+"),
        ({"changed__made": 8}, "its hash is"),
        ({"config__engine": "fairseq"}, "its engine is 'torch'"),
    ],
)
def test_a_broken_record_is_one_line(changes, words, tmp_path):
    path = rewritten(make_record({"mse": 1.0}).write(tmp_path), **changes)
    with pytest.raises(UserError, match=words) as raised:
        Record.read(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_does_not_identify_a_run_can_differ(tmp_path):
    path = rewritten(make_record({"mse": 1.0}).write(tmp_path), config__results_dir="elsewhere", config__device="cuda")
    assert Record.read(path).config["device"] == "cuda"


def test_what_is_no_record_at_all(tmp_path):
    path = make_record({"mse": 1.0}).write(tmp_path)
    content = json.loads(path.read_text())
    lacking = [json.dumps({key: content[key] for key in content if key != name}) for name in set(content) - {"schema"}]
    for text in ("", "[]", "{", "[" * 100_000, '{"schema": 3', "\ud800", *lacking):
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(UserError, match=r"is not a|has no field"):
            Record.read(path)


def test_a_write_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        make_record({"mse": 1.0}, hardware={"not": object()}).write(tmp_path)
    assert not any(tmp_path.iterdir())


def test_what_is_no_number_is_written_as_none(tmp_path):
    parts = {"baselines": {"naive": {"mse": math.inf}}, "history": [{"step": 1, "loss": math.nan, "validation": 2.0}]}
    record = Record.finished(make_about(), metrics=[], **parts, cost=RunCost(), engine_facts={})
    read = Record.read(record.write(tmp_path))
    assert read.baselines == {"naive": {"mse": None}}
    assert read.history == [{"step": 1, "loss": None, "validation": 2.0}]


def test_one_broken_file_stops_no_report(tmp_path, caplog):
    whole = make_record({"mse": 0.5}).write(tmp_path)
    changed = make_record({"mse": 0.5}, seed=1).write(tmp_path)
    changed.write_text(changed.read_text().replace("0.5", "0.1"))
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "deeper.json").write_text('{"a":' * 990 + "1" + "}" * 990)
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    skipped: list[str] = []
    assert records_in(tmp_path, skipped) == [(whole, Record.read(whole))]
    assert len(skipped) == 5
    assert f"{changed} is not a valid result record (it was changed after it was written" in caplog.text
    for name in (changed.name, "deep.json", "deeper.json", "folder.json", "pipe.json"):
        assert sum(name in line for line in skipped) == 1
        assert name in caplog.text


@pytest.mark.parametrize("folder", COMMITTED_DIRS, ids=lambda folder: folder.name)
def test_committed_records_pass_all_checks(folder):
    """Commands read them without checks, and read the same."""
    unchecked = records_in(folder, [])
    assert sorted(path for path, _ in unchecked) == record_paths(folder) != []
    assert all(dataclasses.replace(Record.read(path), is_bundled=True) == record for path, record in unchecked)


def test_a_set_is_read_as_the_files_of_its_records_each_once(tmp_path, caplog):
    records = {record.hash: record for record in (make_record({"mse": 1.0}, seed=seed) for seed in (2, 1))}
    for record in records.values():
        record.write(tmp_path / "runs")
    written = bundle(tmp_path / "runs", tmp_path)
    text = written.read_text()
    written.write_text(text.replace("\n", "\n\n"))  # an editor left empty lines
    assert record_paths(tmp_path) == [tmp_path / f"{digest}.json" for digest in sorted(records)]
    assert {digest: Record.read(tmp_path / f"{digest}.json") for digest in records} == records
    written.write_text(text * 2)
    assert len(record_paths(tmp_path)) == 2
    assert "line 3: the record of line 1 again, which counts once" in caplog.text
    written.write_bytes(b"\xe9" + text.encode())
    with pytest.raises(UserError, match=r"records\.jsonl cannot be read: 'utf-8' codec"):
        record_paths(tmp_path)
