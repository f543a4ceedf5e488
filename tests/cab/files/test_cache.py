"""Prepared data: made once, whole or not at all, whoever asks."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cab import UserError
from cab.files import cache
from cab.files.cache import cache_root, checksums, prepared, read_bytes, sha256_of
from tasks.files import read_lines


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(folder: Path) -> None:
    (folder / "data").write_text("whole")


def fail(folder: Path) -> None:
    write(folder)
    raise RuntimeError("half way")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data", "who", "data has 3 bytes instead of 5"),
        ("data", "WHOLE", "the content of data has changed"),
        ("data", None, "data is missing"),
        ("key.json", "[1, {", r"key\.json cannot be read"),
        ("key.json", None, r"key\.json is missing"),
    ],
)
def test_a_damaged_entry_is_made_again(name, content, message, root, caplog):
    folder = prepared("numbers", {}, write)
    (root / f".{folder.name}-killed").mkdir()  # of a build that was killed
    (folder / name).unlink()
    (folder / name).write_text(content) if content else None
    cache._CHECKED.clear()  # as in another process
    assert (prepared("numbers", {}, write) / "data").read_text() == "whole"
    assert re.search(f"rebuilding .*{message}", caplog.text)
    assert [path.name for path in root.iterdir() if path.is_dir()] == [folder.name]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one two")
    checksums([path])
    assert read_bytes(path) == b"one two"
    path.write_text("two one")
    for read in (read_bytes, lambda path: list(read_lines(path))):
        with pytest.raises(UserError, match=r"a\.txt changed while it was read; wait until it is complete"):
            read(path)
    checksums([path])
    assert read_bytes(path) == b"two one"


def test_the_checksum_of_a_file_that_changed_just_now_is_of_its_content(tmp_path):
    """Within a tick of the clock, a change of the same size leaves size and time as they were."""
    path, sums = tmp_path / "a.txt", set()
    for i in range(50):
        path.write_text(f"{i:03}")
        sums.add(checksums([path])["a.txt"])
    assert len(sums) == 50


def test_it_is_made_once_for_each_key_and_a_failure_leaves_nothing(root):
    first = prepared("numbers", {"a": 1}, write)
    assert prepared("numbers", {"a": 1}, fail) == first
    with pytest.raises(RuntimeError, match="half way"):
        prepared("numbers", {"a": 2}, fail)
    assert [path for path in root.iterdir() if path.is_dir()] == [first]
    assert prepared("numbers", {"a": 2}, write) != first


def test_processes_that_start_together_make_it_once(tmp_path):
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


def test_checksums_are_of_the_content_and_distinguish_files_of_one_name(tmp_path):
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


def test_a_home_that_cannot_be_written_is_replaced(root, tmp_path, monkeypatch):
    (tmp_path / "home").write_text("a file, which can have no folders")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "home/cache"))
    with pytest.raises(UserError, match=r"CAB_CACHE=.*home/cache cannot be used: Not a directory"):
        prepared("numbers", {}, write)
    monkeypatch.setenv("CAB_CACHE", str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)  # a disk that can only be read, also by root
        with pytest.raises(UserError, match=r"CAB_CACHE=.* cannot be used: not writable; set it to a writable folder$"):
            cache_root()
    monkeypatch.delenv("CAB_CACHE")
    assert prepared("numbers", {}, write).is_relative_to(tmp_path / "temporary")
    assert not root.exists()


@pytest.mark.parametrize("form", ["link", "open to all"])
def test_a_temporary_folder_of_others_is_no_cache(form, tmp_path, monkeypatch, caplog):
    (tmp_path / "home").write_text("a file, which can have no folders")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CAB_CACHE", "")
    occupied = tmp_path / f"cab-{os.getuid()}"
    if form == "link":
        occupied.symlink_to(tmp_path)
    else:
        occupied.mkdir()
        occupied.chmod(0o777)
    folder = cache_root()
    assert folder not in (occupied, occupied.resolve())
    assert cache_root() == folder
    assert f"others can write to {occupied}" in caplog.text
