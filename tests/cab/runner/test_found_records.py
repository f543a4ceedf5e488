"""A record that is already there: it is of this cell and of today's data, or it is said."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cab import UserError
from cab.records.record import Record
from cab.records.schema import with_checksum
from cab.runner.report import Job, Report, cells_without_record
from cab.runner.run import run_cell
from tests.cab.runner.troubled import Troubled

Cell = Callable[..., dict[str, Any]]


@pytest.fixture
def measured(troubled: Cell, tmp_path: Path) -> Path:
    """The record of a finished cell."""
    record = run_cell(troubled("trainer.max_steps=1")).record
    assert record is not None
    return tmp_path / f"{record.hash}.json"


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Troubled, "fingerprint", lambda self: {"made": "anew"})  # noqa: ARG005


def test_a_record_of_other_data_is_not_already_there(
    measured: Path, troubled: Cell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert run_cell(troubled("trainer.max_steps=1")).kind == "cached"
    other_data(monkeypatch)
    before = files(tmp_path)
    with pytest.raises(UserError, match=r"measured on different data \(made was for tests, is anew\)") as raised:
        run_cell(troubled("trainer.max_steps=1"))
    assert measured.name in str(raised.value)
    assert "force=true" in str(raised.value)
    assert files(tmp_path) == before
    again = run_cell(troubled("trainer.max_steps=1", "force=true"))
    assert again.kind == "completed"
    assert Record.read(measured).data == {"made": "anew"}


def test_a_sweep_reads_the_data_of_its_found_cells_once(
    measured: Path, troubled: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    monkeypatch.setattr(Troubled, "setup", lambda self, root: read.append(root))  # noqa: ARG005
    report = Report()
    jobs = [Job(troubled("trainer.max_steps=1"), "cab run")] * 3
    assert measured.exists()
    assert list(cells_without_record(jobs, report)) == []
    assert len(report.outcomes) == 3
    assert len(read) == 1


def test_a_sweep_names_a_cell_of_other_data(measured: Path, troubled: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    other_data(monkeypatch)
    report = Report()
    assert list(cells_without_record([Job(troubled("trainer.max_steps=1"), "cab run")], report)) == []
    assert report.exit_status == 1
    assert measured.name in report.failures[0]


def test_data_that_are_not_here_leave_the_record_its_word(
    measured: Path, troubled: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(self: Troubled, root: Path | None) -> None:  # noqa: ARG001
        raise UserError("no data")

    monkeypatch.setattr(Troubled, "setup", missing)
    assert measured.exists()
    assert run_cell(troubled("trainer.max_steps=1")).kind == "cached"


def test_the_record_of_another_cell_under_this_name(measured: Path, troubled: Cell) -> None:
    measured.write_text(json.dumps(with_checksum(json.loads(measured.read_text()) | {"hash": "0123"})))
    with pytest.raises(UserError, match="contains the record of cell 0123"):
        run_cell(troubled("trainer.max_steps=1"))


def test_a_record_changed_by_hand_is_named_and_run_again(
    measured: Path, troubled: Cell, caplog: pytest.LogCaptureFixture
) -> None:
    content = json.loads(measured.read_text())
    content["metrics"][0]["value"] = 0.999
    measured.write_text(json.dumps(content))
    with caplog.at_level(logging.WARNING):
        assert run_cell(troubled("trainer.max_steps=1")).kind == "completed"
    assert "was changed after it was written" in caplog.text
    assert Record.read(measured).metrics[0].value != 0.999


def test_a_cost_has_processor_seconds_and_the_load(measured: Path) -> None:
    cost = Record.read(measured).cost
    assert cost.cpu_seconds is not None
    assert cost.cpu_seconds > 0
    assert cost.load is not None
    assert cost.load >= 0


def test_a_cost_stands_beside_the_expected_hours(troubled: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"preset": "smoke", "task": "troubled", "dataset": "", "backbone": "gpt2", "gpu_hours": "0.5"}
    monkeypatch.setattr("cab.runner.cell._costs", lambda: (row | {"preset": "mini", "gpu_hours": "7"}, row))
    record = run_cell(troubled("trainer.max_steps=1")).record
    assert record is not None
    assert record.cost.expected_gpu_hours == 0.5


@pytest.mark.parametrize("force", ["true", "false"])
def test_a_folder_that_is_a_link_is_not_followed(
    force: str, measured: Path, troubled: Cell, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mine.txt").write_text("precious")
    folder = measured.with_suffix("")
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(elsewhere)
    if force == "false":
        measured.unlink()
    with pytest.raises(UserError, match="is a symbolic link"):
        run_cell(troubled("trainer.max_steps=1", f"force={force}"))
    assert [path.name for path in elsewhere.iterdir()] == ["mine.txt"]
    assert measured.exists() == (force == "true")


def test_links_in_a_folder_are_not_followed(
    measured: Path, troubled: Cell, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mine.txt").write_text("precious")
    folder = measured.with_suffix("")
    (folder / "folder").symlink_to(elsewhere)
    (folder / "file").symlink_to(elsewhere / "mine.txt")
    assert run_cell(troubled("trainer.max_steps=1", "force=true")).kind == "completed"
    assert (elsewhere / "mine.txt").read_text() == "precious"
    assert not (folder / "folder").exists()
