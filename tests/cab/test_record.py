"""Records: what is written is what is read, and what is broken is said in one line."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cab import UserError
from cab.record import Cost, Metric, Record, Status
from tests.cab.made_records import make_about, make_record


def rewritten(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def failed(**changes: Any) -> Record:
    given: dict[str, Any] = {"status": Status.OOM, "error": MemoryError("none\nleft"), "step": None, "cost": Cost()}
    declared = [Metric("mse", "", higher_is_better=False), Metric("mse_512", "", higher_is_better=False, at_length=512)]
    return Record.failed(make_about(), metrics=declared, **(given | changes))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    record = make_record({"mse": 0.1 + 0.2, "mae": None}, beside=["mae"], baselines={"naive": {"mse": 2.5}})
    path = record.write(tmp_path)
    assert path == tmp_path / f"{record.hash}.json"
    assert Record.read(path) == record
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_failed_run_has_the_same_keys(tmp_path: Path) -> None:
    record = failed(step=3, cost=Cost(steps=3))
    written = json.loads(record.write(tmp_path / "failed").read_text())
    finished = json.loads(make_record({"mse": 1.0}).write(tmp_path).read_text())
    assert written.keys() == finished.keys()
    assert written["cost"].keys() == finished["cost"].keys()
    assert written["error"] == "MemoryError: none"
    assert [(m["value"], m["at_length"]) for m in written["metrics"]] == [(None, None), (None, 512)]
    assert Record.read(tmp_path / "failed" / f"{record.hash}.json") == record


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_a_measured_value_is_finite_or_none(value: float | None) -> None:
    metric = Metric("mse", "", higher_is_better=False, at_length=512)
    assert metric.measured(value) == metric
    assert metric.measured(2).value == 2.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": 1}, "schema 2"),
        ({"cell": {"task": "lstf"}}, "lacks seed"),
        ({"cell": 3}, "cell is 3"),
        ({"hash": "../outside"}, "is not the hash"),
        ({"status": "done"}, "'done' is not a valid Status"),
        ({"metrics": [{"name": "mse"}]}, "missing"),
        ({"metrics": [{"name": "mse", "unit": "", "higher_is_better": 1}]}, "metric"),
        ({"metrics": [{"name": "mse", "unit": "", "higher_is_better": True, "value": "1.0"}]}, "the value of mse"),
        ({"metrics": [{"name": "mse", "unit": "", "higher_is_better": True, "at_length": 0}]}, "the length of mse"),
        ({"metrics": [{"name": "\ud800", "unit": "", "higher_is_better": True}]}, "not Unicode"),
        ({"metrics": [3]}, "not a whole result record"),
        ({"cost": {"params": "many"}}, "a cost is 'many'"),
        ({"cost": {"params": 10**400}}, "not a whole result record"),
        ({"cost": {"euros": 1}}, "euros"),
        ({"baselines": {"naive": {"mse": []}}}, "baseline naive"),
        ({"revision": {}}, "lacks commit"),
        ({"revision": {"commit": None}}, "commit"),
    ],
)
def test_a_broken_record_is_one_line(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = rewritten(make_record({"mse": 1.0}).write(tmp_path), **changes)
    with pytest.raises(UserError, match=words) as raised:
        Record.read(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_what_is_no_record_at_all(tmp_path: Path) -> None:
    path = make_record({"mse": 1.0}).write(tmp_path)
    content = json.loads(path.read_text())
    for name in set(content) - {"schema"}:
        path.write_text(json.dumps({key: value for key, value in content.items() if key != name}))
        with pytest.raises(UserError, match=f"lacks {name}"):
            Record.read(path)
    for text in ("", "[]", "{", "[" * 100_000, '{"schema": 2'):
        path.write_text(text)
        with pytest.raises(UserError, match="is not a"):
            Record.read(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not a whole"):
        Record.read(path)
    for nothing in (tmp_path / "nothing.json", tmp_path):
        with pytest.raises(UserError):
            Record.read(nothing)


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/b", "", "a b", "x\0y"])
def test_a_record_is_written_into_its_folder_alone(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the hash of a cell"):
        make_record({"mse": 1.0}, hash=name).write(tmp_path / "inside")
    assert not any(tmp_path.iterdir())


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    record = make_record({"mse": 1.0}, config={"not": object()})
    with pytest.raises(TypeError):
        record.write(tmp_path)
    assert not any(tmp_path.iterdir())


def test_records_need_neither_torch_nor_pandas() -> None:
    script = "import sys, cab.record; sys.exit(bool({'torch', 'pandas', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
