"""Hostile archives, hosts, lists and records: each ends in one line and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cab.data.get import get
from cab.data.unpack import unpack

from cab.cli.main import main
from cab.data.check import unpublished_files
from cab.data.download import download
from cab.data.sources import data_sets
from cab.errors import UserError
from cab.files.disk import sanitize_text
from tests.cab.cli.fuzzed import fault_of
from tests.cab.data.hostile import ARCHIVES, GOOD, damaged, zip_of
from tests.cab.data.hosts import Host
from tests.cab.hostile import SCALE, SEED


def outcome(call: Callable[[], object]) -> str:
    """The message of a UserError, which has one line; empty without an error. Other errors are not caught."""
    try:
        call()
    except UserError as error:
        message = str(error)
        assert sanitize_text(message) == message
        return message
    return ""


def unpacked(content: bytes, folder: Path) -> str:
    """The outcome of unpacking an archive, after which its folder is absent, or complete and not larger than it may."""
    folder.mkdir()
    archive, target = folder / "archive", folder / "unpacked"
    archive.write_bytes(content)
    message = outcome(lambda: unpack(archive, target))
    left = {path.name for path in folder.iterdir()}
    assert left == ({"archive"} if message else {"archive", "unpacked"})
    return message


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_hostile_archive_is_refused(name: str, tmp_path: Path) -> None:
    message = unpacked(ARCHIVES[name](), tmp_path / "folder")
    assert message.startswith("archive ")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def answer(status: str, *headers: str, body: bytes = b"content") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode("latin-1") + body


def redirect(place: str) -> bytes:
    return answer("302 Found", f"Location: {place}", "Content-Length: 0", body=b"")


ANSWERS = {
    "length in words": answer("200 OK", "Content-Length: seven"),
    "negative length": answer("200 OK", "Content-Length: -7"),
    "length that no disk has": answer("200 OK", "Content-Length: 999999999999999999"),
    "length of 40 digits": answer("200 OK", f"Content-Length: {'9' * 40}"),
    "length with a sign": answer("200 OK", "Content-Length: +7"),
    "short body": answer("200 OK", "Content-Length: 70"),
    "long body": answer("200 OK", body=b"content" * 100_000),
    "part without a request": answer("206 Partial Content", "Content-Range: bytes 3-6/7", "Content-Length: 4"),
    "no content": answer("204 No Content", body=b""),
    "bad chunk": answer("200 OK", "Transfer-Encoding: chunked", body=b"zz\r\ncontent"),
    "version of two lines": answer("200 OK", "ETag: a\r\n b", "Content-Length: 70"),
    "reason with control characters": answer("404 \x1b[31mred"),
    "no status": b"content",
    "long header": answer("200 OK", "X: " + "x" * 70_000),
    "redirect to a bad address": redirect("http://[bad/file"),
    "redirect to a bad port": redirect("http://127.0.0.1:99999/file"),
    "redirect to a file": redirect("file:///etc/passwd"),
    "redirect to ftp": redirect("ftp://127.0.0.1/file"),
    "redirect to itself": redirect("HOST/file"),
    "redirect to no host": redirect("http:///file"),
    "redirect to a name that is none": redirect("http://\xe4..\xe4/file"),
}


def fetched(content: bytes, host: Host, folder: Path) -> str:
    """The outcome of a download, after which there is the right file or none, and maybe a part to resume from."""
    folder.mkdir()
    host.raw["file"] = content
    message = outcome(lambda: download(f"{host.address}/file", folder / "file", size=7))
    left = {path.name for path in folder.iterdir()}
    assert left <= {"file.part", "file.part.tag"} if message else left == {"file"}
    return message


@pytest.mark.parametrize("name", ANSWERS)
def test_a_hostile_answer_is_one_line(name: str, host: Host, tmp_path: Path) -> None:
    message = fetched(ANSWERS[name], host, tmp_path / "folder")
    assert bool(message) != name.startswith(("length in", "negative", "length of 40", "length with"))
    assert message.startswith(f"{host.address}/file" if message else "")
    if "again" not in message and "resume" not in message:
        assert sum(1 for _ in (tmp_path / "folder").iterdir()) == (0 if message else 1)
    del host.raw["file"]
    host.files["file"] = b"content"
    (tmp_path / "folder" / "file").unlink(missing_ok=True)
    assert download(f"{host.address}/file", tmp_path / "folder" / "file", size=7)
    assert (tmp_path / "folder" / "file").read_bytes() == b"content", "a part that was left does no harm"


def test_a_part_that_does_not_continue_the_file_is_not_used(host: Host, tmp_path: Path) -> None:
    for start in ("0-6/7", "4-6/7", "x", "3"):
        (tmp_path / "file.part").write_bytes(b"con")
        (tmp_path / "file.part.tag").write_text("version")
        host.raw["file"] = answer(
            "206 Partial Content", f"Content-Range: bytes {start}", "Content-Length: 4", body=b"tent"
        )
        assert "sends another part" in outcome(lambda: download(f"{host.address}/file", tmp_path / "file"))
        assert not (tmp_path / "file").exists()
        assert not (tmp_path / "file.part").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"train/1.txt\n\xff\xfe", "it is not UTF-8 text"),
        (b"train/1.txt\ntrain/2.txt\ntrain/1.txt\n", "contains 'train/1.txt' twice"),
        (b"train/1.txt\ntrain\n", "contains 'train' twice"),
        (b"train/1.txt\ncab-data-pg19.json\n", "a name that is reserved for downloads"),
        (b"train/1.txt\n" + b"n" * 300, "a path that is too long"),
        ("train/1.txt\ntrain/\xe4.txt".encode(), "which is not a path below"),
        (b"/".join([b"d"] * 60), "a path of more than 50 folders"),
        (b"train/1.txt\x00", "which is not a path below"),
    ],
)
def test_a_hostile_list_is_refused(content: bytes, words: str, host: Host, tmp_path: Path) -> None:
    item = dataclasses.replace(
        data_sets()["pg19"].items[0], bytes=None, sha256=None, address=f"{host.address}/list", list_of=host.address
    )
    host.files |= {"list": content, "train/1.txt": b"a book", "train/2.txt": b"a book"}
    message = outcome(lambda: get(dataclasses.replace(data_sets()["pg19"], items=[item]), tmp_path))
    assert words in message
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


SHA = "0" * 64


@pytest.mark.parametrize(
    "content",
    [
        {"files": {"/etc/passwd": {"sha256": SHA}}},
        {"files": {"../lstf/ETTh1.csv": {"sha256": SHA}}},
        {"files": {"./ETTh1.csv": {"sha256": SHA}}},
        {"files": {"n" * 5000: {"sha256": SHA}}},
        {"files": {"a\0b": {"sha256": SHA}}},
        {"files": {"\ud800": {"sha256": SHA}}},
        {"files": {"ETTh1.csv": {"sha256": 3}}},
        {"files": {"ETTh1.csv": "sha256"}},
        {"files": {"ETTh1.csv": {"sha256": "short"}}},
        {"files": [["ETTh1.csv", {"sha256": None}]]},
        {"files": 3},
        [],
        b"\xff",
        b"[" * 100_000,
        b'{"files": {"ETTh1.csv": {"sha256": NaN}}}',
    ],
    ids=str,
)
def test_a_hand_made_record_is_refused(content: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lstf").mkdir()
    (tmp_path / "lstf" / "ETTh1.csv").write_text("x")
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (tmp_path / "lstf" / "cab-data-etth1.json").write_bytes(data)
    assert main(["data", "verify", "etth1", "--data-root", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "was not written by `cab data download`: delete it" in said
    assert said.count("\n") == 1


def test_files_that_are_not_the_published_ones_are_named(tmp_path: Path) -> None:
    etth1 = data_sets()["etth1"]
    assert unpublished_files(etth1, tmp_path) == []
    (tmp_path / "lstf").mkdir()
    (tmp_path / "lstf" / "ETTh1.csv").write_text("x")
    assert unpublished_files(etth1, tmp_path) == ["ETTh1.csv"]
    assert unpublished_files(data_sets()["weather"], tmp_path) == []


def test_a_folder_that_was_unpacked_by_hand_brings_no_record(tmp_path: Path) -> None:
    source, root = tmp_path / "unpacked", tmp_path / "data"
    source.mkdir()
    for name in ("1.png", "cab-data-ffhq.json"):
        (source / name).write_bytes(b"x")
    ffhq = data_sets()["ffhq"]
    counts = [dataclasses.replace(count, expected=1) for count in ffhq.counts]
    get(dataclasses.replace(ffhq, counts=counts), root, source=str(source))
    assert [path.name for path in root.rglob("*") if path.is_file()] == ["1.png"]


@pytest.mark.slow
def test_damaged_archives_are_refused_or_harmless(tmp_path: Path) -> None:
    """Archives that the day draws: a changed archive is refused, or its files are below the folder."""
    archives = damaged(random.Random(SEED))
    refused = 0
    for number in range(3_000 * SCALE):
        change, content = next(archives)
        folder = tmp_path / str(number)
        try:
            refused += bool(unpacked(content, folder))
        except Exception as error:
            raise AssertionError(f"CAB_CONFORMANCE_SEED={SEED}, archive {number} ({change})") from error
        assert {path.name for path in tmp_path.iterdir()} == {str(number)}
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 1 << 20
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
    assert refused > 300 * SCALE
    assert not unpacked(zip_of(GOOD), tmp_path / "good")


@pytest.mark.slow
def test_damaged_answers_are_refused_or_harmless(host: Host, tmp_path: Path) -> None:
    """Hostile answers, then answers that the day draws."""
    numbers = random.Random(SEED)
    right = answer("200 OK", "Content-Type: text/plain", "Content-Length: 7", 'ETag: "1"', "Content-Range: bytes 0-6/7")
    whole = [right, *(content for name, content in ANSWERS.items() if "ftp" not in name)]
    for number in range(500 * SCALE):
        content = bytearray(whole[number] if number < len(whole) else numbers.choice(whole))
        for _ in range(numbers.choice((1, 2, 5)) if number >= len(whole) else 0):
            place = numbers.randrange(min(len(content), 200) + 1)
            content[place : place + numbers.choice((0, 1, 3))] = numbers.randbytes(numbers.choice((0, 1, 2)))
        try:
            fetched(bytes(content), host, tmp_path / str(number))
        except Exception as error:
            raise AssertionError(f"CAB_CONFORMANCE_SEED={SEED}, answer {number}: {content[:300]!r}") from error


NAMES = (
    "ETTh1.csv",
    "/etc/passwd",
    "../ETTh1.csv",
    "n" * 5000,
    "a\0b",
    "\ud800",
    "",
    ".",
    "a\nb",
    "d/" * 60,
    "cab-data-x",
)
VALUES = (
    SHA,
    None,
    3,
    "short",
    [],
    {},
    [[]],
    float("nan"),
    10**400,
    {"sha256": SHA},
    {"sha256": None},
    {"sha256": "x"},
)


@pytest.mark.slow
def test_drawn_records_of_downloads_are_refused_or_harmless(tmp_path: Path) -> None:
    """Hand-made ``cab-data-*.json`` that the day draws, with hostile names, values and bytes."""
    draw = random.Random(SEED)
    file = tmp_path / "lstf" / "cab-data-etth1.json"
    file.parent.mkdir()
    (file.parent / "ETTh1.csv").write_text("x")
    for number in range(500 * SCALE):
        files = {draw.choice(NAMES): {"sha256": draw.choice(VALUES)} for _ in range(draw.randrange(3))}
        record = {"data_set": "etth1", "files": draw.choice((files, files, draw.choice(VALUES)))}
        content = bytearray(json.dumps(draw.choice((record, record, draw.choice(VALUES)))).encode())
        for _ in range(draw.choice((0, 0, 1, 3))):
            place = draw.randrange(len(content) + 1)
            content[place : place + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
        file.write_bytes(content)
        fault = fault_of(["data", "verify", "etth1", "--data-root", str(tmp_path)])
        assert not fault, f"CAB_CONFORMANCE_SEED={SEED}, record {number}: {bytes(content[:300])!r}: {fault}"


@pytest.mark.slow
def test_drawn_lists_are_refused_or_harmless(host: Host, tmp_path: Path) -> None:
    """Lists of files that the day draws."""
    draw = random.Random(SEED)
    item = dataclasses.replace(
        data_sets()["pg19"].items[0], bytes=None, sha256=None, address=f"{host.address}/list", list_of=host.address
    )
    pg19 = dataclasses.replace(data_sets()["pg19"], items=[item])
    right = [f"train/{number}.txt" for number in range(3)]
    host.files |= dict.fromkeys(right, b"a book")
    for number in range(200 * SCALE):
        lines = [draw.choice((*right, *NAMES)).encode("utf-8", "surrogatepass") for _ in range(draw.randrange(1, 4))]
        host.files["list"] = b"\n".join(lines)[: draw.choice((None, None, 5))] + draw.choice((b"", b"\n", b"\xff"))
        folder = tmp_path / str(number)
        try:
            outcome(lambda folder=folder: get(pg19, folder))
        except Exception as error:
            raise AssertionError(f"CAB_CONFORMANCE_SEED={SEED}, list {number}: {host.files['list']!r}") from error
        assert {path.name for path in tmp_path.iterdir()} <= {str(number)}
        shutil.rmtree(folder, ignore_errors=True)
