"""`cab data download`: from small stand-ins of each host to the layout that the task reads."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import http.client
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from cab.data.get import Got, get

from cab.cli.main import main
from cab.data import get as module
from cab.data.check import State, take_stock
from cab.data.sources import DataSet, data_sets
from cab.errors import UserError
from tasks.corpus.books import FolderBooks
from tasks.lstf.data import find_file
from tasks.pcc.data import read_pcn
from tasks.sr.data import read_pairs
from tasks.sum.data import find_pairs
from tasks.tts.data import _find_folder, _find_grid, read_metadata
from tests.cab.data.hosts import Host
from tests.cab.data.stand_ins import BOOK, GRID, PUBLISHED, archive, stand_ins
from tests.cab.data.test_unpack import make_zip


@pytest.fixture
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """By data set, what each item is."""
    return stand_ins(tmp_path_factory.mktemp("archives"))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, contents: dict[str, dict[str, bytes]]) -> dict[str, DataSet]:
    """The data sets as they are described, with the sizes, checksums and counts of the stand-ins."""
    small = {}
    for name, each in data_sets().items():
        items = [
            dataclasses.replace(
                item,
                bytes=item.bytes and len(contents[name][item.name]),
                sha256=item.sha256 and hashlib.sha256(contents[name][item.name]).hexdigest(),
            )
            for item in each.items
        ]
        counts = [dataclasses.replace(count, expected=PUBLISHED.get(count.field, 1)) for count in each.counts]
        small[name] = dataclasses.replace(each, items=items, counts=counts)
    small["ecl"] = dataclasses.replace(small["ecl"], counts=[dataclasses.replace(small["ecl"].counts[0], expected=3)])
    monkeypatch.setattr("cab.cli.data.data_sets", lambda: small)  # it must be imported before the other changes
    monkeypatch.setattr("cab.data.sources.data_sets", lambda: small)
    return small


@pytest.fixture
def hosts(host: Host, known: dict[str, DataSet], contents: dict[str, dict[str, bytes]]) -> dict[str, DataSet]:
    """The data sets with each address on the host of the test, at the path it has on its own."""

    def here(address: str | None) -> str | None:
        return address and address.replace("https://", f"{host.address}/")

    for name, each in known.items():
        items = [
            dataclasses.replace(item, address=here(item.address), list_of=here(item.list_of)) for item in each.items
        ]
        for item in items:
            if item.address is not None:
                host.files[item.address.removeprefix(f"{host.address}/")] = contents[name][item.name]
            for path in contents[name] if item.list_of else ():
                host.files[f"{item.list_of}{path}".removeprefix(f"{host.address}/")] = contents[name][path]
        known[name] = dataclasses.replace(each, items=items)
    return known


def leftovers(root: Path) -> list[str]:
    return [
        path.name for path in root.rglob("*") if path.name.startswith(".") or path.suffix in (".part", ".tag", ".tmp")
    ]


FROM_HOSTS = [name for name, each in data_sets().items() if not each.by_hand]


@pytest.mark.parametrize("name", FROM_HOSTS)
def test_what_its_host_has_becomes_what_the_task_reads(
    name: str, hosts: dict[str, DataSet], host: Host, tmp_path: Path
) -> None:
    got = get(hosts[name], tmp_path)
    assert got.stock.state is State.READY
    assert got.stock.folder == tmp_path / hosts[name].folders[0]
    assert got.by_hand == []
    assert leftovers(tmp_path) == []
    assert take_stock(hosts[name], tmp_path, thorough=True).state is State.READY
    recorded = json.loads((got.stock.folder / f"cab-data-{name}.json").read_text())["files"]
    assert {item.name for item in hosts[name].items} <= recorded.keys()
    asked = len(host.asked)
    assert get(hosts[name], tmp_path).stock.state is State.READY
    assert len(host.asked) == asked, "what is here is not asked for again"


def test_the_readers_of_the_tasks_find_it(hosts: dict[str, DataSet], tmp_path: Path) -> None:
    for name in ("etth1", "ecl", "pg19", "multi_news", "ljspeech"):
        get(hosts[name], tmp_path)
    table = find_file("ECL.csv", tmp_path, "ecl").read_text().splitlines()
    assert table[0].startswith("date,MT_000,MT_001,")
    assert table[0].endswith(",MT_320")
    assert [line[:23] for line in table[1:]] == [f"2012-01-01 0{hour}:00:00,0,1" for hour in range(3)]
    assert find_file("ETTh1.csv", tmp_path, "etth1").parent == tmp_path / "lstf"
    assert list(FolderBooks(tmp_path / "lm").read("train")) == [BOOK.decode()] * 2
    assert next(find_pairs("multi_news", None, tmp_path).read("val")) == ("text", "text")
    folder = _find_folder(tmp_path)
    assert [clip for clip, _ in read_metadata(folder)] == ["LJ001-0001", "LJ002-0001"]
    assert _find_grid(folder, "LJ001-0001") is not None


@pytest.mark.parametrize("name", ["weather", "pcn", "ffhq", "celebahq"])
@pytest.mark.parametrize("form", ["file", "folder", "unpacked", "mirror"])
def test_what_a_person_downloads_is_put_into_its_place(
    name: str,
    form: str,
    hosts: dict[str, DataSet],
    host: Host,
    contents: dict[str, dict[str, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "cache"))
    each, downloads, root = hosts[name], tmp_path / "downloads", tmp_path / "data"
    [by_hand] = [item for item in each.items if item.address is None]
    got = get(each, root)
    assert got.by_hand == [by_hand.by_hand]
    assert got.stock.state is (State.PARTIAL if name == "pcn" else State.MISSING)
    downloads.mkdir()
    for file, content in contents[name].items():
        (downloads / file).write_bytes(content)
        host.files[f"mirror/{file}"] = content
    source = str(downloads)
    if form == "file":
        source = str(downloads / by_hand.name)
    elif form == "mirror":
        source = f"{host.address}/mirror/"
    elif form == "unpacked" and by_hand.unpacks is not None:
        shutil.unpack_archive(downloads / by_hand.name, downloads / "unpacked", "zip")
        source = str(downloads / "unpacked")
    got = get(each, root, source=source)
    assert got == Got(got.stock, [])
    assert got.stock.state is State.READY
    assert leftovers(root) == []
    if name == "pcn":
        for part, views in (("train", 8), ("val", 1), ("test", 1)):
            assert len(read_pcn(root, "PCN.json", part, views=views)[0]) == views
    elif name != "weather":
        assert len(read_pairs(name, root, low=16, high=32)[0]) == 2


@pytest.mark.parametrize("source", ["nowhere", "https://127.0.0.1:9/mirror"])
def test_a_place_that_is_not_there(
    source: str, known: dict[str, DataSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cab.data.download.RETRY_DELAYS", ())
    words = "--source nowhere does not exist; name a file" if source == "nowhere" else "no connection"
    with pytest.raises(UserError, match=words):
        get(known["etth1"], tmp_path, source=source)
    assert leftovers(tmp_path) == []


def test_a_cut_set_goes_on_with_what_it_lacks(hosts: dict[str, DataSet], host: Host, tmp_path: Path) -> None:
    """The second archive is missing at first; then only it is fetched."""
    host.statuses = []
    path = next(path for path in host.files if path.endswith("ljspeech_mfa.zip"))
    content = host.files.pop(path)
    with pytest.raises(UserError, match="404"):
        get(hosts["ljspeech"], tmp_path)
    assert take_stock(hosts["ljspeech"], tmp_path).state is State.PARTIAL
    assert leftovers(tmp_path) == []
    host.files[path] = content
    host.asked.clear()
    assert get(hosts["ljspeech"], tmp_path).stock.state is State.READY
    assert [asked for asked, _ in host.asked] == [path]


def test_a_list_goes_on_with_the_books_it_lacks(hosts: dict[str, DataSet], host: Host, tmp_path: Path) -> None:
    path = next(path for path in host.files if path.endswith("train/2.txt"))
    content = host.files.pop(path)
    with pytest.raises(UserError, match=r"train/2\.txt: the host returns 404"):
        get(hosts["pg19"], tmp_path)
    assert [book.name for book in (tmp_path / "lm").rglob("*.txt")] == ["1.txt"]
    assert leftovers(tmp_path) == []
    host.files[path] = content
    host.asked.clear()
    assert get(hosts["pg19"], tmp_path).stock.state is State.READY
    assert not any(asked.endswith("train/1.txt") for asked, _ in host.asked)
    recorded = json.loads((tmp_path / "lm" / "cab-data-pg19.json").read_text())["files"]
    assert recorded["train/1.txt"]["sha256"] == hashlib.sha256(BOOK).hexdigest()


@pytest.mark.parametrize("path", ["../outside.txt", "/etc/passwd", "train/../../x.txt", "train//1.txt", ".hidden"])
def test_a_list_that_leads_outside_is_refused(path: str, hosts: dict[str, DataSet], host: Host, tmp_path: Path) -> None:
    listed = next(each for each in host.files if each.endswith("train_files.txt"))
    host.files[listed] = f"train/1.txt\n{path}\n".encode()
    with pytest.raises(UserError, match="which is not a path below"):
        get(hosts["pg19"], tmp_path)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


UNKNOWN = {"bart_bpe", "pg19", "wikitext2", "wikitext103"}
"""Where nothing is known of the files, they cannot be told from others before they have come once."""
TROUBLES = [(name, "page") for name in FROM_HOSTS]
TROUBLES += [(name, trouble) for name in FROM_HOSTS if name not in UNKNOWN for trouble in ("truncated", "changed")]


@pytest.mark.parametrize(("name", "trouble"), TROUBLES)
def test_a_bad_day_of_each_host_leaves_nothing(
    name: str, trouble: str, hosts: dict[str, DataSet], host: Host, tmp_path: Path
) -> None:
    """A web page, a file that ends early, a byte that changed: one line, and no file."""
    for path, content in host.files.items():
        if trouble == "page":
            host.pages.add(path)
        elif trouble == "truncated":
            host.files[path] = content[: len(content) // 2]
        else:
            host.files[path] = bytes([content[0] ^ 1]) + content[1:]
    with pytest.raises(UserError) as error:
        get(hosts[name], tmp_path)
    assert "\n" not in str(error.value)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_ctrl_c_and_again_goes_on(
    hosts: dict[str, DataSet],
    host: Host,
    contents: dict[str, dict[str, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def blocks(response: http.client.HTTPResponse) -> Iterator[bytes]:
        yield response.read(9)
        raise KeyboardInterrupt

    assert hosts["etth1"].items[0].sha256
    with monkeypatch.context() as patch:
        patch.setattr("cab.data.download._blocks", blocks)
        assert main(["data", "download", "etth1", "--data-root", str(tmp_path)]) == 130
    assert "interrupted; repeat the command to resume" in capsys.readouterr().err
    assert main(["data", "download", "etth1", "--data-root", str(tmp_path)]) == 0
    assert host.asked[-1][1] == "bytes=9-"
    assert (tmp_path / "lstf" / "ETTh1.csv").read_bytes() == contents["etth1"]["ETTh1.csv"]
    assert leftovers(tmp_path) == []


def test_an_archive_that_nothing_is_known_of_is_not_kept_when_it_is_bad(
    hosts: dict[str, DataSet], host: Host, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = next(path for path in host.files if path.endswith("ljspeech_mfa.zip"))
    folder = tmp_path_factory.mktemp("bad")
    for bad in (
        host.files[path][:100],
        archive(make_zip, {"../LJ001-0001.TextGrid": GRID}, folder),
        make_zip(folder / "linked", {"LJ001-0001.TextGrid": GRID}, "/etc/passwd").read_bytes(),
        archive(make_zip, {"another.txt": b""}, folder),
        b"no archive at all",
    ):
        host.files[path] = bad
        with pytest.raises(UserError) as error:
            get(hosts["ljspeech"], tmp_path)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "tts" / "TextGrid").exists()
        assert leftovers(tmp_path) == []


def test_a_known_archive_that_could_not_be_unpacked_need_not_come_again(
    hosts: dict[str, DataSet], host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise UserError("no space left to unpack it")

    with monkeypatch.context() as patch:
        patch.setattr(module, "unpack", full)
        with pytest.raises(UserError, match="no space left"):
            get(hosts["ljspeech"], tmp_path)
    host.asked.clear()
    assert get(hosts["ljspeech"], tmp_path).stock.state is State.READY
    assert [path.rpartition("/")[2] for path, _ in host.asked] == ["ljspeech_mfa.zip"]
    assert leftovers(tmp_path) == []


def test_a_file_that_is_another_is_replaced(
    hosts: dict[str, DataSet], contents: dict[str, dict[str, bytes]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "lstf" / "ETTh1.csv"
    file.parent.mkdir()
    file.write_bytes(contents["etth1"]["ETTh1.csv"].replace(b"x", b"y"))  # as many bytes, as many rows
    assert get(hosts["etth1"], tmp_path).stock.state is State.READY
    assert file.read_bytes() == contents["etth1"]["ETTh1.csv"]
    assert f"replacing {file}, which is not the published file" in caplog.text


def test_a_table_of_another_edition_is_refused(hosts: dict[str, DataSet], host: Host, tmp_path: Path) -> None:
    path = next(path for path in host.files if path.endswith("electricity.txt.gz"))
    host.files[path] = gzip.compress(b"1,2,3\n")
    item = dataclasses.replace(hosts["ecl"].items[0], bytes=None, sha256=None)
    with pytest.raises(UserError, match=r"line 1: 3 numbers instead of 321: a different edition"):
        get(dataclasses.replace(hosts["ecl"], items=[item]), tmp_path)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []


@pytest.mark.usefixtures("hosts")
def test_the_command_says_what_came_and_what_to_do_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "my data"
    assert main(["data", "download", "etth1", "gpt2_bpe", "--data-root", str(root)]) == 0
    said = capsys.readouterr()
    assert said.out == f"etth1 is ready in {root}/lstf\ngpt2_bpe is ready in {root}/tokenizers/gpt2\n"
    assert main(["data", "download", "pcn", "--data-root", str(root)]) == 1
    said = capsys.readouterr()
    assert f"pcn is partial in {root}/pcc" in said.out
    assert "ShapeNet is for research and education only" in said.out
    assert "download ShapeNetCompletion.zip from https://gateway.infinitescript.com" in said.out
    assert f"then run: cab data download pcn --data-root '{root}' --source DOWNLOADED_FILE_OR_FOLDER" in said.out
    assert "pcn: PCN.json is complete" in said.err
    assert "\r" not in said.err, "no progress bar where nobody looks"


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["data", "download", "etth1", "--data-root", str(tmp_path / "file")]) == 2
    assert "--data-root: " in capsys.readouterr().err
