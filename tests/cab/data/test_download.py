"""A download ends right or leaves nothing, whatever its host does; what was cut goes on."""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cab.data import download as module
from cab.data.download import download
from cab.errors import UserError
from tests.cab.data.hosts import Host

CONTENT = bytes(range(256)) * 4000  # 1,024,000 bytes
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def address(host: Host) -> str:
    host.files["file.bin"] = CONTENT
    host.versions["file.bin"] = '"1"'
    return f"{host.address}/file.bin"


def refused(address: str, target: Path, words: str, *, kept: bool = False, **known: Any) -> None:
    with pytest.raises(UserError, match=words) as error:
        download(address, target, **known)
    assert "\n" not in str(error.value)
    left = {path.name for path in target.parent.iterdir()} - {"kept"}
    assert left == ({"file.bin.part", "file.bin.part.tag"} if kept else set())


def test_a_file_comes_whole_and_nothing_else_stays(host: Host, address: str, tmp_path: Path) -> None:
    target = tmp_path / "folder" / "file.bin"
    assert download(address, target, size=len(CONTENT), sha256=SHA) == SHA
    assert target.read_bytes() == CONTENT
    assert [path.name for path in target.parent.iterdir()] == ["file.bin"]
    assert host.asked == [("file.bin", "")]


def test_a_cut_connection_is_gone_on_with_at_once(host: Host, address: str, tmp_path: Path) -> None:
    host.cuts = [400_000, 300_000]
    assert download(address, tmp_path / "file.bin", sha256=SHA) == SHA
    assert host.asked == [("file.bin", ""), ("file.bin", "bytes=400000-"), ("file.bin", "bytes=700000-")]


def test_a_host_that_hangs_up_each_time_leaves_the_part_for_the_next_command(
    host: Host, address: str, tmp_path: Path
) -> None:
    host.cuts = [100_000, 100_000, 100_000]
    refused(
        address,
        tmp_path / "file.bin",
        "the connection was lost after 300,000 bytes; repeat the command to resume",
        kept=True,
    )
    assert download(address, tmp_path / "file.bin") == SHA
    assert host.asked[-1] == ("file.bin", "bytes=300000-")
    assert [path.name for path in tmp_path.iterdir()] == ["file.bin"]


def test_a_host_without_ranges_begins_again(host: Host, address: str, tmp_path: Path) -> None:
    host.takes_ranges, host.cuts = False, [500_000]
    assert download(address, tmp_path / "file.bin", sha256=SHA) == SHA
    assert len(host.asked) == 2


def test_a_file_that_changed_in_between_begins_again(host: Host, address: str, tmp_path: Path) -> None:
    host.cuts = [9_000] * 3
    refused(address, tmp_path / "file.bin", "repeat the command to resume", kept=True)
    host.files["file.bin"], host.versions["file.bin"] = CONTENT[::-1], '"2"'
    download(address, tmp_path / "file.bin")
    assert (tmp_path / "file.bin").read_bytes() == CONTENT[::-1]


def test_without_version_and_checksum_a_part_is_not_trusted(host: Host, address: str, tmp_path: Path) -> None:
    host.versions, host.cuts = {}, [9_000]
    assert download(address, tmp_path / "file.bin") == SHA
    assert host.asked == [("file.bin", ""), ("file.bin", "")]


def test_a_part_longer_than_the_file_begins_again(address: str, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT + b"more")
    assert download(address, tmp_path / "file.bin", sha256=SHA) == SHA


def test_a_part_that_is_already_whole_is_not_asked_for(host: Host, address: str, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    assert download(address, tmp_path / "file.bin", size=len(CONTENT), sha256=SHA) == SHA
    assert host.asked == []


def test_a_busy_host_is_asked_again(host: Host, address: str, tmp_path: Path) -> None:
    host.statuses = [503, 429]
    assert download(address, tmp_path / "file.bin") == SHA


def test_what_is_not_what_is_known_is_not_kept(host: Host, address: str, tmp_path: Path) -> None:
    target = tmp_path / "file.bin"
    refused(
        address,
        target,
        r"has SHA-256 \w{12}\.\.\. instead of 000000000000\.\.\.: it was changed; the file was deleted",
        sha256="0" * 64,
    )
    refused(address, target, "has 1,024,000 bytes instead of 1,024,001: a different edition", size=1_024_001)
    host.pages.add("file.bin")
    refused(address, target, "returns a web page instead of the file: it requires a login, or has moved")


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        ([404], "the host returns 404 Not Found"),
        ([403], "the host returns 403 Forbidden; log in or accept the license there"),
        ([503] * 3, "the host returns 503 Service Unavailable"),
    ],
)
def test_a_host_that_has_nothing_leaves_nothing(
    host: Host, address: str, tmp_path: Path, statuses: list[int], words: str
) -> None:
    host.statuses = statuses
    refused(address, tmp_path / "file.bin", words)


def test_no_host_and_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_DELAYS", ())
    refused("http://127.0.0.1:9/file.bin", tmp_path / "file.bin", r"no connection \(Connection refused\)$")
    refused("http://nowhere.invalid/file.bin", tmp_path / "file.bin", r"no connection \(.+\)$")


class FullDisk:
    """A file that has room for one block."""

    def __init__(self, file: Any) -> None:
        self.file, self.blocks = file, 0

    def __enter__(self) -> FullDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, block: bytes) -> None:
        self.blocks += 1
        if self.blocks > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.file.write(block)


def test_a_full_disk_is_one_line_and_is_not_kept_full(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_open = Path.open

    def full(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        file = whole_open(path, mode, *arguments, **options)
        return FullDisk(file) if path.suffix == ".part" and "b" in mode and "r" not in mode else file

    monkeypatch.setattr(Path, "open", full)
    words = f"no space left for file.bin in {re.escape(str(tmp_path))}; the partial file was deleted"
    refused(address, tmp_path / "file.bin", words)


def test_a_disk_without_room_is_told_before_it_is_filled(
    host: Host, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.cuts = [0]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 1000))  # type: ignore[attr-defined]
    refused(address, tmp_path / "file.bin", "has 1 kB of free space but needs 1.0 MB; name another folder")
