"""A record that is already there: it is of this cell and of today's data, or it is said; and one trained again."""

import dataclasses
import json
import os
import socket

import pytest

from cab import UserError
from cab.data.sources import data_sets
from cab.records.record import Record, with_checksum
from cab.runner.report import Job, Report, cells_to_run
from cab.runner.run import run_cell
from tests.helpers.runs.troubled import Troubled, trained


def test_a_sweep_reads_data_of_found_cells_once_and_without_them_a_record_counts(recorded, troubled, monkeypatch):
    read = []

    def missing(self, root):  # noqa: ARG001
        read.append(root)
        raise UserError("no data")

    monkeypatch.setattr(Troubled, "setup", missing)
    report = Report()
    assert recorded.exists()
    assert list(cells_to_run([Job(troubled(), "cab run")] * 3, report)) == []
    assert (len(report.outcomes), len(read)) == (3, 1)


def test_the_record_of_another_cell_under_this_name(recorded, troubled):
    other = trained(troubled("trainer.max_steps=1"))
    recorded.write_bytes((recorded.parent / f"{other.hash}.json").read_bytes())
    with pytest.raises(UserError, match=f"contains the record of cell {other.hash}"):
        run_cell(troubled())


def test_only_what_killed_processes_left_is_removed(recorded, troubled, tmp_path_factory):
    """Also from a folder with links, which are not followed."""
    folder, precious = recorded.with_suffix(""), tmp_path_factory.mktemp("elsewhere") / "mine.txt"
    left = [recorded.parent / f".{recorded.name}-0123abcd.tmp", folder / ".weights.pt-0123.tmp"]
    mine = f"{os.getpid()}@{socket.gethostname()}-0123abcd.tmp"
    left.append(recorded.parent / f".{recorded.name}-{mine.replace(str(os.getpid()), '99999999')}")
    names = "another.json-0123abcd.tmp", f"{recorded.stem}-c0de.json-0123abcd.tmp", f"{recorded.name}-{mine}"
    others = [recorded.parent / f".{name}" for name in names]  # the last one is of a process that runs
    for path in (*left, *others, precious):
        path.write_text("precious")
    (folder / "folder").symlink_to(precious.parent)
    (folder / "file").symlink_to(precious)
    assert run_cell(troubled("force=true")).kind == "completed"
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
    monkeypatch.setattr("cab.data.sources.data_sets", lambda: {"synthetic": data_sets()["etth1"]})
    monkeypatch.setattr("cab.runner.provenance.is_generated", lambda _: False)
    (tmp_path / "ETTh1.csv").write_text("x")
    assert trained(troubled("trainer.max_steps=1", f"data_root={tmp_path}")).unpublished_files == ["ETTh1.csv"]
    assert caplog.text.count("ETTh1.csv is not the published file") == 1


def test_a_worker_that_dies_does_not_pass_off_the_old_record(recorded, troubled):
    """Nor is a new one refused for the clock of its machine."""
    report = Report()
    [(cell, _)] = cells_to_run([Job(troubled("force=true"), "")], report)
    report.add_recorded(cell, otherwise="its worker died")
    assert report.failures == [f"{cell.title}: its worker died"]
    dataclasses.replace(Record.read(recorded), ended="1970-01-01T00:00:00+00:00").write(recorded.parent)
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
def test_a_folder_that_is_a_link_is_not_followed(force, recorded, troubled, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "mine.txt").write_text("precious")
    folder = recorded.with_suffix("")
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(elsewhere)
    if force == "false":
        recorded.unlink()
    with pytest.raises(UserError, match="is a symbolic link"):
        run_cell(troubled(f"force={force}"))
    assert [path.name for path in elsewhere.iterdir()] == ["mine.txt"]
    assert recorded.exists() == (force == "true")


def test_reproduce_compares_and_never_replaces_the_record(recorded, troubled, tmp_path, cab):
    """With the precision that the run resolved: the ``auto`` of a GPU was another one than that of this machine."""
    assert "equal" in cab("reproduce", recorded).out
    content = json.loads(recorded.read_text())
    content["metrics"][0]["value"] += 0.5
    content["versions"]["torch"] = "0.1"
    content["program"]["project"]["cab.runner.batches"] = "0" * 16
    content["config"]["trainer"]["precision"] = "bf16-mixed"
    recorded.write_text(json.dumps(with_checksum(content)))
    printed = cab("reproduce", recorded, status=1).out
    assert "differs" in printed
    assert "torch was 0.1, is " in printed
    assert "other code of the project (cab.runner.batches)" in printed
    assert "definition of the cell has changed" not in printed
    assert "trainer.precision" not in printed
    cab("reproduce", recorded, "--tolerance", "10", "--results-dir", tmp_path / "again")
    [repeated] = (tmp_path / "again").glob("*.json")
    assert Record.read(repeated).config["trainer"]["precision"] == "bf16-mixed"
    relabeled = with_checksum(content | {"cell": content["cell"] | {"config_variant": "easier"}})
    (tmp_path / "relabeled.json").write_text(json.dumps(relabeled))
    oom = trained(troubled("seed=3", trouble="oom")).hash
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    said = cab("reproduce", tmp_path / "relabeled.json", status=2).err
    assert "has config_variant 'easier', but its configuration is that of ''" in said
    cab("reproduce", tmp_path / f"{oom}.json", status=2)
    cab("reproduce", recorded, "--results-dir", tmp_path, status=2)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
