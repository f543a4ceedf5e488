"""Prepared data: made once, whole or not at all, whoever asks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cab import UserError
from cab.files.cache import checksums, prepared, sha256_of


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(folder: Path) -> None:
    (folder / "data").write_text("whole")


def test_it_is_made_once_for_each_key() -> None:
    first = prepared("numbers", {"a": 1}, write)
    assert (first / "data").read_text() == "whole"
    (first / "data").write_text("marked")
    assert (prepared("numbers", {"a": 1}, write) / "data").read_text() == "marked"
    assert prepared("numbers", {"a": 2}, write) != first


def test_a_failure_leaves_nothing_and_is_tried_again(root: Path) -> None:
    def fail(folder: Path) -> None:
        write(folder)
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        prepared("numbers", {}, fail)
    assert not [path for path in root.iterdir() if path.is_dir()]
    assert (prepared("numbers", {}, write) / "data").exists()


def test_processes_that_start_together_make_it_once(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom cab.files.cache import prepared\n"
        "def build(folder):\n"
        "    with open(sys.argv[1], 'a') as log: log.write('made\\n')\n"
        "    time.sleep(0.3)\n"
        "    (folder / 'data').write_text('whole')\n"
        "print((prepared('shared', {}, build) / 'data').read_text())\n"
    )
    log = tmp_path / "log"
    command = [sys.executable, "-c", code, str(log)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) for _ in range(4)]
    assert [process.communicate()[0].strip() for process in started] == ["whole"] * 4
    assert log.read_text() == "made\n"


def test_checksums_are_of_the_content_and_distinguish_files_of_one_name(tmp_path: Path) -> None:
    """As in PCN, where the view 00.pcd of every cloud is a file of its own folder."""
    paths = [tmp_path / folder / "00.pcd" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("1 2 3")
    before = checksums(paths)
    assert list(before) == ["a/00.pcd", "b/00.pcd"]
    assert len(set(before.values())) == 1
    paths[0].write_text("9 9 9 9")
    assert checksums(paths) == {**before, "a/00.pcd": sha256_of(paths[0])[:16]}
    assert list(checksums(paths[:1])) == ["00.pcd"]
    assert checksums([]) == {}


def test_a_home_that_cannot_be_written_is_replaced(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("a file, which can have no folders")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "home/cache"))
    with pytest.raises(UserError, match=r"CAB_CACHE=.*home/cache cannot be used: Not a directory"):
        prepared("numbers", {}, write)
    monkeypatch.delenv("CAB_CACHE")
    assert prepared("numbers", {}, write).is_relative_to(tmp_path / "temporary")
    assert not root.exists()
