"""Archives of strangers: what is damaged or leads outside is refused, and nothing of it stays."""

from __future__ import annotations

import errno
import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cab.data.unpack import find_folder_of, move_into, unpack

from cab.errors import UserError

FILES = {"top/metadata.csv": b"a|b|c\n", "top/wavs/1.wav": bytes(range(256)) * 2000}


def make_zip(path: Path, files: dict[str, bytes], link: str = "") -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        if link:
            entry = zipfile.ZipInfo("top/link")
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, link)
    return path


def make_tar(path: Path, files: dict[str, bytes], link: str = "", kind: bytes = tarfile.SYMTYPE) -> Path:
    with tarfile.open(path, "w:bz2") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        if link:
            entry = tarfile.TarInfo("top/link")
            entry.type, entry.linkname = kind, link
            archive.addfile(entry)
    return path


Make = Callable[..., Path]


@pytest.fixture(params=[make_zip, make_tar], ids=["zip", "tar.bz2"])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param  # type: ignore[no-any-return]


def refused(archive: Path, words: str) -> None:
    folder = archive.parent / "unpacked"
    with pytest.raises(UserError, match=words) as error:
        unpack(archive, folder)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in archive.parent.iterdir()) == [archive.name]


def test_files_come_out_as_they_were(make: Make, tmp_path: Path) -> None:
    unpack(make(tmp_path / "archive", FILES), tmp_path / "unpacked")
    found = {str(p.relative_to(tmp_path / "unpacked")): p.read_bytes() for p in tmp_path.rglob("*.*") if p.is_file()}
    assert found == FILES
    assert find_folder_of(tmp_path / "unpacked", "metadata.csv") == tmp_path / "unpacked" / "top"
    with pytest.raises(UserError, match="does not contain train: it is a different archive"):
        find_folder_of(tmp_path / "unpacked", "train")


@pytest.mark.parametrize("name", ["../outside.txt", "top/../../outside.txt", "/outside.txt", "..\\outside.txt"])
def test_a_path_that_leads_outside_is_refused(make: Make, tmp_path: Path, name: str) -> None:
    refused(make(tmp_path / "archive", {**FILES, name: b"x"}), "a path outside the folder, and was not unpacked")
    assert not (tmp_path.parent / "outside.txt").exists()


@pytest.mark.parametrize("link", ["/etc/passwd", "../..", "metadata.csv"])
def test_a_link_is_refused(make: Make, tmp_path: Path, link: str) -> None:
    refused(make(tmp_path / "archive", FILES, link), "contains 'top/link', a link or a device, and was not unpacked")


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_a_hard_link_or_a_device_is_refused(tmp_path: Path, kind: bytes) -> None:
    refused(make_tar(tmp_path / "archive", FILES, "top/metadata.csv", kind), "a link or a device")


def test_a_truncated_archive_is_refused(make: Make, tmp_path: Path) -> None:
    archive = make(tmp_path / "archive", FILES)
    whole = archive.read_bytes()
    for share in (0.02, 0.5, 0.9):
        archive.write_bytes(whole[: int(len(whole) * share)])
        refused(archive, r"archive is damaged \(.+\): download it again")


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "archive", FILES)
    content = bytearray(archive.read_bytes())
    content[content.index(b"top/wavs/1.wav") + 20] ^= 1
    archive.write_bytes(content)
    refused(archive, r"archive is damaged \(.+\): download it again")


def test_a_path_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr("a", "1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a", "2")
    refused(tmp_path / "archive", "contains a path twice and was not unpacked")


def test_a_full_disk_leaves_nothing(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullFile(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    archive, whole_open = make(tmp_path / "archive", FILES), Path.open

    def opened(path: Path, mode: str = "r", **options: Any) -> Any:
        return FullFile() if mode == "xb" else whole_open(path, mode, **options)

    monkeypatch.setattr(Path, "open", opened)
    refused(archive, "no space left to unpack archive")


def test_folders_are_merged_and_files_replaced(tmp_path: Path) -> None:
    for name, text in {
        "new/a/1": "new",
        "new/a/2": "new",
        "new/b/3": "new",
        "old/a/1": "old",
        "old/a/9": "old",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    move_into(tmp_path / "new", tmp_path / "old")
    found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"old/a/1": "new", "old/a/2": "new", "old/a/9": "old", "old/b/3": "new"}
