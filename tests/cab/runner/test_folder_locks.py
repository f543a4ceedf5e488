"""File systems without locks, locks of other machines, folders that vanish: one line says what to do."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.files.locks import is_locked, locked
from cab.records.record import Record
from cab.runner.folder import cell_statuses
from tests.helpers.runs.fixtures import TROUBLED
from tests.helpers.runs.troubled import Troubled, trained

ONE_STEP = "trainer.max_steps=1"


def without_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let every flock fail."""

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)


@pytest.fixture
def interrupted(troubled, tmp_path):
    """Folder of a run without a record."""
    record = trained(troubled(ONE_STEP))
    (tmp_path / f"{record.hash}.json").unlink()
    return tmp_path / record.hash


NO_LOCKS, NO_ANSWER = (
    "{} is on a file system that cannot lock files ({})",
    "the disk of {} failed ({}); repeat the command",
)


@pytest.mark.parametrize("sweep", [[], ["-m"]])
@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.ENOLCK, NO_LOCKS), (errno.EOPNOTSUPP, NO_LOCKS), (errno.ESTALE, NO_ANSWER), (errno.EIO, NO_ANSWER)],
)
def test_a_file_system_without_locks_is_named(number, words, sweep, interrupted, monkeypatch, cab):
    without_locks(monkeypatch, number)
    command = ["run", *sweep, *TROUBLED, ONE_STEP, f"results_dir={interrupted.parent}"]
    said = cab(*command, status=1 if sweep else 2).err
    assert words.format(interrupted.parent, os.strerror(number)) in said
    assert "Traceback" not in said
    assert [found.status for found in cell_statuses(interrupted.parent)] == ["interrupted"], "nothing can run there"


def test_the_lock_of_another_machine_is_named_with_its_age(interrupted, monkeypatch, capsys):
    without_locks(monkeypatch, errno.ENOSYS)
    monkeypatch.setattr("socket.gethostname", lambda: "node1")
    lock = interrupted / "lock"
    lock.write_text("4711\nnode17\n")
    os.utime(lock, (0, lock.stat().st_mtime - 2 * 3600))
    command = ["run", *TROUBLED, ONE_STEP, f"results_dir={interrupted.parent}"]
    assert main(command) == 2
    assert f"{lock} was written 2.0 hours ago by a process of another machine (4711 node17)" in capsys.readouterr().err
    lock.unlink()
    assert main(command) == 0, capsys.readouterr().err


HOLD = """
import sys
from pathlib import Path
from cab.files.locks import locked
with locked(Path(sys.argv[1])):
    print(flush=True)
    input()
"""


def test_a_lock_that_is_held_is_waited_for_and_names_its_owner(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr("cab.files.locks.PATIENCE", 0.1)
    path = tmp_path / "lock"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], **pipes) as holder:
        holder.stdout.readline()
        with locked(path) as is_ours:
            assert not is_ours
        timer = threading.Timer(0.5, holder.communicate, (b"\n",))
        timer.start()
        with locked(path, "which prepares it") as is_ours:
            assert is_ours
            assert is_locked(path)
            timer.join()
    assert (
        f"waiting for process {holder.pid} on {socket.gethostname()} since 0.0 hours, which prepares it" in caplog.text
    )
    assert path.read_text().split() == [str(os.getpid()), socket.gethostname()]
    assert not is_locked(path)


def test_a_folder_that_vanishes_is_named(troubled, tmp_path, monkeypatch, cab):
    troubled()
    loss = Troubled.loss

    def vanish(self, *arguments):
        shutil.rmtree(tmp_path / "results")
        monkeypatch.setattr(Troubled, "loss", loss)
        return loss(self, *arguments)

    monkeypatch.setattr(Troubled, "loss", vanish)
    said = cab("run", *TROUBLED, f"results_dir={tmp_path / 'results'}", status=2).err
    assert "was deleted or moved during the run" in said
    assert "traceback.txt" not in said


def test_a_record_that_may_not_be_read_is_not_run_again(troubled, tmp_path, monkeypatch, capsys):
    record = trained(troubled(ONE_STEP))
    path, read = tmp_path / f"{record.hash}.json", Path.read_text

    def refused(self, *arguments, **options):
        if self == path:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return read(self, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refused)
    before = path.stat().st_mtime_ns
    assert main(["run", *TROUBLED, ONE_STEP, f"results_dir={tmp_path}"]) == 2
    assert f"{path} cannot be read: Permission denied; the run need not be repeated" in capsys.readouterr().err
    assert path.stat().st_mtime_ns == before


def test_status_lists_runs_once_with_what_distinguishes_them(troubled, tmp_path, cab):
    assert f"no run in {tmp_path}" in cab("status", str(tmp_path)).err
    command = ["run", "-m", *TROUBLED, ONE_STEP, "trainer.learning_rate=0.01,0.03", f"results_dir={tmp_path}"]
    troubled()
    table = cab(*command).out
    assert table.count("trainer.learning_rate=0.0") == 2
    paths = list(tmp_path.glob("*.json"))
    shutil.copy(paths[0], tmp_path / "copy.json")
    header, *rows = cab("status", str(tmp_path), "--csv").out.splitlines()
    assert header.endswith(",seed,settings,status,detail,tokens_per_second,mfu,hash")
    rates = {json.loads(path.read_text())["config"]["trainer"]["learning_rate"]: path.stem for path in paths}
    cells = [row.split(",", 8)[8].split(",") for row in rows]
    assert {",".join([*row[:3], row[5]]) for row in cells} == {
        f"trainer.learning_rate={rate},finished,,{digest}" for rate, digest in rates.items()
    }
    assert len(rows) == 2
    assert Record.read(tmp_path / "copy.json").hash == paths[0].stem
