"""File systems without locks, locks of other machines, folders that vanish: one line says what to do."""

import errno
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from cab.files.locks import is_locked, locked
from cab.runner.folder import cell_statuses
from tests.helpers.runs.fixtures import TROUBLED
from tests.helpers.runs.troubled import trained


def without_locks(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, os.strerror(number))))


@pytest.fixture
def interrupted(recorded):
    recorded.unlink()
    return recorded.with_suffix("")


NAMED = dict.fromkeys((errno.ENOLCK, errno.EOPNOTSUPP), "{} is on a file system that cannot lock files ({})")
NAMED |= dict.fromkeys((errno.ESTALE, errno.EIO), "the disk of {} failed ({}); repeat the command")


@pytest.mark.parametrize("sweep", [[], ["-m"]])
@pytest.mark.parametrize("number", NAMED)
def test_a_file_system_without_locks_is_named(number, sweep, interrupted, monkeypatch, cab):
    without_locks(monkeypatch, number)
    said = cab("run", *sweep, *TROUBLED, f"results_dir={interrupted.parent}", status=1 if sweep else 2).err
    assert NAMED[number].format(interrupted.parent, os.strerror(number)) in said
    assert "Traceback" not in said
    assert [found.status for found in cell_statuses(interrupted.parent)] == ["interrupted"], "nothing can run there"


def test_the_lock_of_another_machine_is_named_with_its_age(interrupted, monkeypatch, cab):
    without_locks(monkeypatch, errno.ENOSYS)
    monkeypatch.setattr("socket.gethostname", lambda: "node1")
    lock = interrupted / "lock"
    lock.write_text("4711\nnode17\n")
    os.utime(lock, (0, lock.stat().st_mtime - 2 * 3600))
    command = ["run", *TROUBLED, f"results_dir={interrupted.parent}"]
    said = cab(*command, status=2).err
    assert f"{lock} was written 2.0 hours ago by a process of another machine (4711 node17)" in said
    lock.unlink()
    cab(*command)


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
    owner = f"process {holder.pid} on {socket.gethostname()}"
    assert f"waiting for {owner} since 0.0 hours, which prepares it" in caplog.text
    assert path.read_text().split() == [str(os.getpid()), socket.gethostname()]
    assert not is_locked(path)


def test_a_record_that_may_not_be_read_is_not_run_again(recorded, monkeypatch, cab):
    read = Path.read_text

    def refused(self, *arguments, **options):
        if self == recorded:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return read(self, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refused)
    before = recorded.read_bytes()
    said = cab("run", *TROUBLED, f"results_dir={recorded.parent}", status=2).err
    assert f"{recorded} cannot be read: Permission denied; the run need not be repeated" in said
    assert recorded.read_bytes() == before


def test_status_lists_runs_once_with_what_distinguishes_them(troubled, tmp_path, cab):
    assert f"no run in {tmp_path}" in cab("status", tmp_path).err
    hashes = {rate: trained(troubled(f"trainer.learning_rate={rate}")).hash for rate in ("0.01", "0.03")}
    shutil.copy(tmp_path / f"{hashes['0.01']}.json", tmp_path / "copy.json")
    rows = cab("status", tmp_path, "--csv").rows
    columns = ("settings", "status", "detail", "hash")
    assert [*rows[0]][-7:] == ["seed", *columns[:3], "tokens_per_second", "mfu", "hash"]
    assert {tuple(row[name] for name in columns) for row in rows} == {
        (f"trainer.learning_rate={rate}", "finished", "", digest) for rate, digest in hashes.items()
    }
    assert len(rows) == 2
