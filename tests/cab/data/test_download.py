"""A download ends with the published files where the tasks read them, or in one line without a partial file."""

from __future__ import annotations

import bz2
import dataclasses
import errno
import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cab.cli.main import main
from cab.data.check import State, take_inventory
from cab.data.download import download, fetch, unpack
from cab.data.sources import DataSet, data_sets
from cab.errors import UserError
from tasks.corpus.books import folder_books
from tasks.files import find_data
from tasks.pcc.data import read_pcn
from tasks.sr.data import read_pairs
from tasks.sum.data import find_pairs
from tasks.tts.data import _find_grid, read_metadata
from tests.helpers.data.hosts import Host
from tests.helpers.data.stand_ins import BOOK, GRID, PUBLISHED, stand_ins, tar_of, zip_of

CONTENT = bytes(range(256)) * 400
SHA = hashlib.sha256(CONTENT).hexdigest()
CONTENTS = stand_ins()
FROM_HOSTS = [name for name, data in data_sets().items() if not data.by_hand]


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_file_is_fetched_verified_and_readable_by_others(host: Host, tmp_path: Path) -> None:
    host.files["file.bin"] = CONTENT
    host.statuses = [503, 429]
    target = tmp_path / "folder" / "file.bin"
    mask = os.umask(0o022)
    try:
        entry = fetch(f"{host.address}/file.bin", target, size=len(CONTENT), sha256=SHA)
    finally:
        os.umask(mask)
    assert entry == {"sha256": SHA, "bytes": len(CONTENT), "address": f"{host.address}/file.bin"}
    assert target.read_bytes() == CONTENT
    assert target.stat().st_mode & 0o777 == 0o644
    assert files_below(tmp_path) == ["folder/file.bin"]
    assert len(host.requests) == 3, "a busy host is asked again"
    fetch(f"{host.address}/file.bin", target, sha256=SHA)
    assert len(host.requests) == 3, "an existing file is not downloaded again"


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ({"statuses": [404]}, "404 Client Error: Not Found"),
        ({"statuses": [403]}, "403 .*; log in or accept the license there"),
        ({"cuts": [9] * 3}, "cannot download .*/file.bin: .*IncompleteRead"),
        ({"pages": {"file.bin"}}, "returns a web page instead of the file: it requires a login, or has moved"),
        ({"sha256": "0" * 64}, "does not match the known hash"),
        ({"size": 7}, "has 102,400 bytes instead of 7: a different edition"),
    ],
)
def test_a_bad_day_of_a_host_is_one_line(trouble: dict[str, Any], words: str, host: Host, tmp_path: Path) -> None:
    host.files["file.bin"] = CONTENT
    expected = {name: trouble[name] for name in ("size", "sha256") if name in trouble}
    for name in trouble.keys() - expected.keys():
        setattr(host, name, trouble[name])
    with pytest.raises(UserError, match=words) as error:
        fetch(f"{host.address}/file.bin", tmp_path / "file.bin", **expected)
    assert "\n" not in str(error.value)
    assert files_below(tmp_path) == []


FILES = {"top/metadata.csv": b"a|b|c\n", "top/wavs/1.wav": CONTENT}


def plain_tar(files: dict[str, bytes]) -> bytes:
    return bz2.decompress(tar_of(files))


def with_changed_byte(archive: bytes) -> bytes:
    place = archive.index(b"top/wavs/1.wav") + 20
    return archive[:place] + bytes([archive[place] ^ 1]) + archive[place + 1 :]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (zip_of({**FILES, "../outside": b"x"}), "contains '../outside', a path outside the folder"),
        (tar_of({**FILES, "../outside": b"x"}), "damaged or unsafe .*outside the destination"),
        (tar_of(FILES, link="/etc/passwd"), "damaged or unsafe .*absolute path"),
        (tar_of(FILES, link="x", kind=tarfile.CHRTYPE), "damaged or unsafe .*special"),
        (zip_of(FILES)[:-30], "damaged or unsafe"),
        (with_changed_byte(zip_of(FILES)), "damaged or unsafe"),
        (zip_of(FILES) + zip_of(FILES), "has no end, or bytes before or after its members"),
        (b"more" + zip_of(FILES), "has no end, or bytes before or after its members"),
        (plain_tar(FILES)[:1024], "has no end, or bytes before or after its members"),  # between two members
        (plain_tar(FILES)[:1700], "damaged or unsafe .*unexpected end of data"),
        (plain_tar(FILES) + plain_tar(FILES), "has no end, or bytes before or after its members"),
        (gzip.compress(plain_tar(FILES)[:1024], mtime=0), "has no end, or bytes before or after its members"),
        (tar_of(FILES)[:-9], "damaged or unsafe"),
    ],
)
def test_a_damaged_or_unsafe_archive_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(UserError, match=f"archive .*{words}") as error:
        unpack(tmp_path / "archive", tmp_path / "unpacked")
    assert "\n" not in str(error.value)
    assert not any("outside" in name or name == "etc/passwd" for name in files_below(tmp_path))


def repeated(form: str) -> bytes:
    content, name = io.BytesIO(), "a/1.txt"
    if form == "zip":
        with zipfile.ZipFile(content, "w") as members:
            members.writestr(name, "one")
            with pytest.warns(UserWarning, match="Duplicate name"):
                members.writestr(name, "two")
    else:
        with tarfile.open(fileobj=content, mode="w") as files:
            for text in (b"one", b"two"):
                about = tarfile.TarInfo(name)
                about.size = len(text)
                files.addfile(about, io.BytesIO(text))
    return content.getvalue()


@pytest.mark.parametrize("form", ["zip", "tar"])
def test_members_with_one_name_are_named(form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "archive").write_bytes(repeated(form))
    unpack(tmp_path / "archive", tmp_path / "unpacked")
    assert (tmp_path / "unpacked/a/1.txt").read_text() == "two"
    assert caplog.messages == ["archive contains a/1.txt more than once; the last one is used"]


@pytest.fixture
def hosts(host: Host, monkeypatch: pytest.MonkeyPatch) -> dict[str, DataSet]:
    """The data sets with the sizes, checksums and counts of the stand-ins, and their addresses on the test's host."""
    small = {}
    for name, data in data_sets().items():
        items = []
        for item in data.items:
            content = CONTENTS.get(name, {}).get(item.name, b"")
            known = {
                "bytes": item.bytes and len(content),
                "sha256": item.sha256 and hashlib.sha256(content).hexdigest(),
            }
            for field in ("address", "list_of"):
                url = getattr(item, field)
                known[field] = url and url.replace("https://", f"{host.address}/")
            items.append(dataclasses.replace(item, **known))
            if item.address is not None:
                host.files[item.address.removeprefix("https://")] = content
            for path in CONTENTS[name] if item.list_of else ():
                host.files[f"{item.list_of}{path}".removeprefix("https://")] = CONTENTS[name][path]
        published = PUBLISHED | ({"rows": 3} if name == "ecl" else {})
        counts = [dataclasses.replace(count, expected=published.get(count.field, 1)) for count in data.counts]
        small[name] = dataclasses.replace(data, items=items, counts=counts)
    monkeypatch.setattr("cab.cli.data.data_sets", lambda: small)
    monkeypatch.setattr("cab.data.sources.data_sets", lambda: small)
    return small


def test_every_data_set_arrives_where_its_task_reads_it(hosts: dict[str, DataSet], host: Host, tmp_path: Path) -> None:
    for name in FROM_HOSTS:
        inventory, manual_steps = download(hosts[name], tmp_path)
        assert (inventory.state, inventory.folder, manual_steps) == (
            State.READY,
            tmp_path / hosts[name].folders[0],
            [],
        ), name
        assert take_inventory(hosts[name], tmp_path, thorough=True).state is State.READY
        recorded = json.loads((inventory.folder / f"cab-data-{name}.json").read_text())["files"]
        assert {item.name for item in hosts[name].items} <= recorded.keys()
    assert not any("/." in f"/{name}" or "tmp" in name for name in files_below(tmp_path))
    assert not list(tmp_path.rglob(".cab-data*"))
    host.requests.clear()
    for name in FROM_HOSTS:
        assert download(hosts[name], tmp_path)[0].state is State.READY
    assert host.requests == [], "existing files are not downloaded again"
    table = find_data("ecl", tmp_path, "ECL.csv").read_text().splitlines()
    assert table[0].startswith("date,MT_000,MT_001,")
    assert table[0].endswith(",MT_320")
    assert [line[:23] for line in table[1:]] == [f"2012-01-01 0{hour}:00:00,0,1" for hour in range(3)]
    assert list(folder_books(tmp_path / "lm").read("train")) == [BOOK.decode()] * 2
    assert next(find_pairs("multi_news", None, tmp_path).read("val")) == ("text", "text")
    folder = find_data("ljspeech", tmp_path, "metadata.csv").parent
    assert [clip for clip, _ in read_metadata(folder)] == ["LJ001-0001", "LJ002-0001"]
    assert _find_grid(folder, "LJ001-0001") is not None


@pytest.mark.parametrize(
    ("name", "form"),
    [("weather", "file"), ("pcn", "file"), ("pcn", "mirror"), ("ffhq", "unpacked"), ("celebahq", "folder")],
)
def test_what_a_person_downloads_is_put_into_its_place(
    name: str, form: str, hosts: dict[str, DataSet], host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "cache"))
    downloads, root = tmp_path / "downloads", tmp_path / "data"
    [by_hand] = [item for item in hosts[name].items if item.address is None]
    inventory, manual_steps = download(hosts[name], root)
    assert manual_steps == [by_hand.by_hand]
    assert inventory.state is (State.PARTIAL if name == "pcn" else State.MISSING)
    downloads.mkdir()
    for file, content in CONTENTS[name].items():
        (downloads / file).write_bytes(content)
        host.files[f"mirror/{file}"] = content
    source = {"mirror": f"{host.address}/mirror/", "file": str(downloads / by_hand.name)}.get(form, str(downloads))
    if form == "unpacked":
        shutil.unpack_archive(downloads / by_hand.name, downloads / "unpacked", "zip")
        source = str(downloads / "unpacked")
    inventory, manual_steps = download(hosts[name], root, source=source)
    assert (inventory.state, manual_steps) == (State.READY, [])
    if name == "pcn":
        assert len(read_pcn(root, "PCN.json", "train", views=8)[0]) == 8
    elif name != "weather":
        assert len(read_pairs(name, root, low=16, high=32)[0]) == 2


def test_a_source_that_does_not_exist(hosts: dict[str, DataSet], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--source nowhere does not exist; name a file"):
        download(hosts["etth1"], tmp_path, source="nowhere")
    (tmp_path / "WTH.csv").mkdir()
    with pytest.raises(UserError, match=r"this folder does not contain WTH\.csv"):
        download(hosts["weather"], tmp_path / "data", source=str(tmp_path / "WTH.csv"))


@pytest.mark.parametrize(("name", "end"), [("ljspeech", "ljspeech_mfa.zip"), ("pg19", "train/2.txt")])
def test_the_next_download_fetches_what_is_missing(
    name: str, end: str, hosts: dict[str, DataSet], host: Host, tmp_path: Path
) -> None:
    missing = host.path(end)
    content = host.files.pop(missing)
    with pytest.raises(UserError, match="404"):
        download(hosts[name], tmp_path)
    assert take_inventory(hosts[name], tmp_path).state is State.PARTIAL
    assert not list(tmp_path.rglob(".cab-data*"))
    host.files[missing] = content
    host.requests.clear()
    assert download(hosts[name], tmp_path)[0].state is State.READY
    assert missing in host.requests
    assert not {host.path("LJSpeech-1.1.tar.bz2"), host.path("train/1.txt")} & set(host.requests)
    recorded = json.loads((tmp_path / hosts[name].folders[0] / f"cab-data-{name}.json").read_text())["files"]
    if name == "pg19":
        assert recorded["train/1.txt"]["sha256"] == hashlib.sha256(BOOK).hexdigest()


@pytest.mark.parametrize("path", ["../outside.txt", "/etc/passwd", "train/../../x.txt", ".hidden", "\udce4"])
def test_a_list_that_leads_outside_is_refused(path: str, hosts: dict[str, DataSet], host: Host, tmp_path: Path) -> None:
    host.files[host.path("train_files.txt")] = f"train/1.txt\n{path}\n".encode("utf-8", "surrogateescape")
    with pytest.raises(UserError, match="which is not a path below"):
        download(hosts["pg19"], tmp_path)
    assert files_below(tmp_path) == []


@pytest.mark.parametrize(
    "bad",
    [zip_of({"../LJ001-0001.TextGrid": GRID}), zip_of({"another.txt": b""})],
    ids=["outside", "another"],
)
def test_a_bad_archive_without_a_known_checksum_is_not_kept(
    bad: bytes, hosts: dict[str, DataSet], host: Host, tmp_path: Path
) -> None:
    host.files[host.path("ljspeech_mfa.zip")] = bad
    with pytest.raises(UserError) as error:
        download(hosts["ljspeech"], tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "tts" / "TextGrid").exists()
    assert not list(tmp_path.rglob(".cab-data*"))


def test_a_full_disk_is_one_line_and_a_verified_archive_is_kept(
    hosts: dict[str, DataSet], host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("cab.data.download.tarfile.TarFile.extractall", fail)
        with pytest.raises(UserError, match=r"no space left on the disk of .*/tts"):
            download(hosts["ljspeech"], tmp_path)
    assert files_below(tmp_path) == ["tts/.cab-data-ljspeech/LJSpeech-1.1.tar.bz2"]
    host.requests.clear()
    assert download(hosts["ljspeech"], tmp_path)[0].state is State.READY
    assert host.requests == [host.path("ljspeech_mfa.zip")]


def test_a_file_with_another_content_is_replaced(
    hosts: dict[str, DataSet], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "lstf" / "ETTh1.csv"
    file.parent.mkdir()
    file.write_bytes(CONTENTS["etth1"]["ETTh1.csv"].replace(b"x", b"y"))  # the same size and number of rows
    assert download(hosts["etth1"], tmp_path)[0].state is State.READY
    assert file.read_bytes() == CONTENTS["etth1"]["ETTh1.csv"]
    assert f"replacing {file}, which is not the published file" in caplog.text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(b"1,2,3\n", mtime=0), "line 1: 3 numbers instead of 321: a different edition"),
        (b"\x1f\x8b1", "is damaged"),
    ],
    ids=["edition", "damaged"],
)
def test_a_table_of_another_edition_is_refused(
    content: bytes, words: str, hosts: dict[str, DataSet], host: Host, tmp_path: Path
) -> None:
    host.files[host.path("electricity.txt.gz")] = content
    item = dataclasses.replace(hosts["ecl"].items[0], bytes=None, sha256=None)
    with pytest.raises(UserError, match=words):
        download(dataclasses.replace(hosts["ecl"], items=[item]), tmp_path)
    assert files_below(tmp_path) == []


def test_two_downloads_at_once_fetch_each_file_once(hosts: dict[str, DataSet], host: Host, tmp_path: Path) -> None:
    threads = [threading.Thread(target=download, args=(hosts["gpt2_bpe"], tmp_path)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(host.requests) == 2


@pytest.mark.usefixtures("hosts")
def test_the_command_reports_states_and_manual_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "my data"
    assert main(["data", "download", "etth1", "gpt2_bpe", "--data-root", str(root)]) == 0
    out = capsys.readouterr().out
    assert out == f"etth1 is ready in {root}/lstf\ngpt2_bpe is ready in {root}/tokenizers/gpt2\n"
    assert main(["data", "download", "pcn", "--data-root", str(root)]) == 1
    out, err = capsys.readouterr()
    assert f"pcn is partial in {root}/pcc" in out
    assert "ShapeNet is for research and education only" in out
    assert "download ShapeNetCompletion.zip from https://gateway.infinitescript.com" in out
    assert f"then run: cab data download pcn --data-root '{root}' --source DOWNLOADED_FILE_OR_FOLDER" in out
    assert "pcn: PCN.json is complete" in err
    assert "\r" not in err, "no progress bar without a terminal"
    (tmp_path / "file").write_text("")
    assert main(["data", "download", "etth1", "--data-root", str(tmp_path / "file")]) == 2
    assert "--data-root: " in capsys.readouterr().err
