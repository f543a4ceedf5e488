"""A record that is already there: it is of this cell and of today's data, or it is said; and one trained again."""

import dataclasses
import json
import os
import socket

import pytest

from cab import UserError
from cab.cli.main import main
from cab.data.sources import data_sets
from cab.records.record import Record, with_checksum
from cab.runner.report import Job, Report, cells_to_run
from cab.runner.run import run_cell
from tests.helpers.runs.troubled import Troubled, trained


@pytest.fixture
def measured(troubled, tmp_path):
    """The record of a finished cell."""
    record = trained(troubled("trainer.max_steps=1"))
    return tmp_path / f"{record.hash}.json"


def test_a_sweep_reads_the_data_of_its_found_cells_once(measured, troubled, monkeypatch):
    read = []
    monkeypatch.setattr(Troubled, "setup", lambda self, root: read.append(root))  # noqa: ARG005
    report = Report()
    jobs = [Job(troubled("trainer.max_steps=1"), "cab run")] * 3
    assert measured.exists()
    assert list(cells_to_run(jobs, report)) == []
    assert len(report.outcomes) == 3
    assert len(read) == 1


def test_data_that_are_not_here_leave_the_record_its_word(measured, troubled, monkeypatch):
    def missing(self, root):  # noqa: ARG001
        raise UserError("no data")

    monkeypatch.setattr(Troubled, "setup", missing)
    assert measured.exists()
    assert run_cell(troubled("trainer.max_steps=1")).kind == "cached"


def test_the_record_of_another_cell_under_this_name(measured, troubled):
    other = trained(troubled("trainer.max_steps=1", "seed=2"))
    measured.write_bytes((measured.parent / f"{other.hash}.json").read_bytes())
    with pytest.raises(UserError, match=f"contains the record of cell {other.hash}"):
        run_cell(troubled("trainer.max_steps=1"))


def test_a_relabeled_record_is_not_reproduced(measured, cab):
    content = json.loads(measured.read_text())
    relabeled = content | {"cell": content["cell"] | {"config_variant": "easier"}}
    measured.write_text(json.dumps(with_checksum(relabeled)))
    said = cab("reproduce", str(measured), status=2).err
    assert "has config_variant 'easier', but its configuration is that of ''" in said


def test_only_what_killed_processes_left_is_removed(measured, troubled, tmp_path_factory):
    """Also from a folder with links, which are not followed."""
    folder, precious = measured.with_suffix(""), tmp_path_factory.mktemp("elsewhere") / "mine.txt"
    left = [measured.parent / f".{measured.name}-0123abcd.tmp", folder / ".weights.pt-0123.tmp"]
    mine = f"{os.getpid()}@{socket.gethostname()}-0123abcd.tmp"
    left.append(measured.parent / f".{measured.name}-{mine.replace(str(os.getpid()), '99999999')}")
    names = "another.json-0123abcd.tmp", f"{measured.stem}-c0de.json-0123abcd.tmp", f"{measured.name}-{mine}"
    others = [measured.parent / f".{name}" for name in names]  # the last one is of a process that runs
    for path in (*left, *others, precious):
        path.write_text("precious")
    (folder / "folder").symlink_to(precious.parent)
    (folder / "file").symlink_to(precious)
    assert run_cell(troubled("trainer.max_steps=1", "force=true")).kind == "completed"
    assert [path.exists() for path in (*left, folder / "folder", precious)] == [False] * 4 + [True]
    assert all(path.exists() for path in others)


def test_files_have_the_permissions_that_the_umask_leaves(troubled, tmp_path):
    before = os.umask(0o027)
    try:
        run_cell(troubled("trainer.max_steps=1"))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
    assert "weights.pt" in modes
    assert {name: mode for name, mode in modes.items() if name != "lock" and mode != 0o640} == {}


def test_a_run_on_files_that_are_not_the_published_ones_is_marked(troubled, tmp_path, monkeypatch, caplog):
    found = {"synthetic": data_sets()["etth1"]}
    monkeypatch.setattr("cab.data.sources.data_sets", lambda: found)
    monkeypatch.setattr("cab.runner.provenance.is_generated", lambda _: False)
    (tmp_path / "ETTh1.csv").write_text("x")
    record = trained(troubled("trainer.max_steps=1", f"data_root={tmp_path}"))
    assert record.unpublished_files == ["ETTh1.csv"]
    assert caplog.text.count("ETTh1.csv is not the published file") == 1


def test_a_worker_that_dies_does_not_pass_off_the_old_record(measured, troubled):
    """Nor is a new one refused for the clock of its machine."""
    config = troubled("trainer.max_steps=1", "force=true")
    report = Report()
    [(cell, _)] = cells_to_run([Job(config, "")], report)
    report.add_recorded(cell, otherwise="its worker died")
    assert report.failures == [f"{cell.title}: its worker died"]
    dataclasses.replace(Record.read(measured), ended="1970-01-01T00:00:00+00:00").write(measured.parent)
    report.add_recorded(cell, otherwise="its worker died")
    assert len(report.failures) == len(report.outcomes) == 1


def test_a_cost_has_processor_seconds_the_load_and_the_expected_hours(troubled, monkeypatch):
    row = {"preset": "smoke", "task": "troubled", "dataset": "", "backbone": "gpt2", "hours": "0.5", "hardware": "GPU"}
    monkeypatch.setattr("cab.runner.cell.read_rows", lambda _: (row | {"preset": "mini", "hours": "7"}, row))
    record = trained(troubled("trainer.max_steps=1"))
    assert (record.cost.cpu_seconds or 0) > 0
    assert (record.cost.load or -1) >= 0
    assert record.cost.expected_gpu_hours == 0.5


@pytest.mark.parametrize("force", ["true", "false"])
def test_a_folder_that_is_a_link_is_not_followed(force, measured, troubled, tmp_path_factory):
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


def test_reproduce_compares(troubled, tmp_path, cab):
    record = trained(troubled())
    path = tmp_path / f"{record.hash}.json"
    assert "equal" in cab("reproduce", str(path)).out
    changed = json.loads(path.read_text())
    changed["metrics"][0]["value"] += 0.5
    changed["versions"]["torch"] = "0.1"
    changed["program"]["project"]["cab.runner.batches"] = "0" * 16
    path.write_text(json.dumps(with_checksum(changed)))
    printed = cab("reproduce", str(path), status=1).out
    assert "differs" in printed
    assert "torch was 0.1, is " in printed
    assert "other code of the project (cab.runner.batches)" in printed
    assert main(["reproduce", str(path), "--tolerance", "10"]) == 0
    run_cell(troubled("seed=3", trouble="oom"))
    [oom] = [p for p in tmp_path.glob("*.json") if p != path]
    assert main(["reproduce", str(oom)]) == 2


def test_reproduce_never_replaces_the_record(troubled, tmp_path):
    record = trained(troubled())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["reproduce", str(tmp_path / f"{record.hash}.json"), "--results-dir", str(tmp_path)]) == 2
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_reproduce_uses_the_precision_that_the_run_resolved(troubled, tmp_path, cab):
    """As the record of a GPU: its ``auto`` was another precision than that of this machine."""
    path = tmp_path / f"{trained(troubled()).hash}.json"
    content = json.loads(path.read_text())
    content["config"]["trainer"]["precision"] = "bf16-mixed"
    path.write_text(json.dumps(with_checksum(content)))
    printed = cab("reproduce", str(path), "--tolerance", "1", "--results-dir", str(tmp_path / "again")).out
    assert "definition of the cell has changed" not in printed
    assert "trainer.precision" not in printed
    [repeated] = (tmp_path / "again").glob("*.json")
    assert Record.read(repeated).config["trainer"]["precision"] == "bf16-mixed"
