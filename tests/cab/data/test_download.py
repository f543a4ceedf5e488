"""A download ends with the published files where they are counted, or in one line without a partial file."""

import dataclasses
import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cab.config.compose import compose
from cab.data.check import State, take_inventory
from cab.data.download import download, fetch, unpack
from cab.data.sources import DataSet, data_sets
from cab.errors import UserError
from cab.runner.cell import Cell
from cab.runner.engine import load_data

CONTENT = bytes(range(256)) * 400
SHA = hashlib.sha256(CONTENT).hexdigest()


class Host:
    """A host with the content of its ``files`` by path, and the paths of requests."""

    def __init__(self) -> None:
        self.address = ""
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.cuts: list[int] = []  # numbers of bytes after which the next answers end
        self.statuses: list[int] = []  # of the next answers

    def path(self, end: str) -> str:
        """Return the path of the file whose path ends so."""
        return next(path for path in self.files if path.endswith(end))


@pytest.fixture
def host(monkeypatch):
    """A host; a failed download is retried at once."""
    monkeypatch.setattr("cab.data.download.RETRY_DELAYS", (0.0, 0.0))
    host = Host()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.lstrip("/")
            host.requests.append(path)
            if host.statuses or path not in host.files:
                self.send_error(host.statuses.pop(0) if host.statuses else 404)
                return
            body = host.files[path]
            form = "text/html; charset=utf-8" if body.startswith(b"<html>") else "application/octet-stream"
            self.send_response(200)
            self.send_header("Content-Type", form)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: host.cuts.pop(0)] if host.cuts else body)

        def log_message(self, *_: object) -> None:
            """Do not log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        host.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield host
        server.shutdown()


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def zip_of(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def tar_of(files: dict[str, bytes], *, form: str = "bz2", link: str = "") -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=f"w:{form}") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        if link:
            entry = tarfile.TarInfo("top/link")
            entry.type, entry.linkname = tarfile.SYMTYPE, link
            archive.addfile(entry)
    return content.getvalue()


def test_a_file_is_fetched_verified_and_readable_by_others(host, tmp_path):
    host.files["file.bin"] = CONTENT
    host.statuses = [503, 429]
    target = tmp_path / "folder" / "file.bin"
    address, mask = f"{host.address}/file.bin", os.umask(0o022)
    try:
        entry = fetch(address, target, size=len(CONTENT), sha256=SHA)
    finally:
        os.umask(mask)
    assert entry == {"sha256": SHA, "bytes": len(CONTENT), "address": address}
    assert target.read_bytes() == CONTENT
    assert target.stat().st_mode & 0o777 == 0o644
    assert files_below(tmp_path) == ["folder/file.bin"]
    fetch(address, target, sha256=SHA)
    assert len(host.requests) == 3, "a busy host is asked again, but not for a file that exists"


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ({"statuses": [403]}, "403 .*; log in or accept the license there"),
        ({"cuts": [9] * 3}, "cannot download .*/file.bin: .*IncompleteRead"),
        ({"files": {"file.bin": b"<html>"}}, "a web page instead of the file: it requires a login, or has moved"),
        ({"sha256": "0" * 64}, "does not match the known hash"),
        ({"size": 7}, "has 102,400 bytes instead of 7: a different edition"),
    ],
)
def test_a_bad_day_of_a_host_is_one_line(trouble, words, host, tmp_path):
    host.files["file.bin"] = CONTENT
    vars(host).update({name: value for name, value in trouble.items() if name in vars(host)})
    expected = {name: value for name, value in trouble.items() if name not in vars(host)}
    with pytest.raises(UserError, match=words) as error:
        fetch(f"{host.address}/file.bin", tmp_path / "file.bin", **expected)
    assert "\n" not in str(error.value)
    assert files_below(tmp_path) == []


FILES = {"top/metadata.csv": b"a|b|c\n", "top/wavs/1.wav": CONTENT}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (zip_of({**FILES, "../outside": b"x"}), "contains '../outside', a path outside the folder"),
        (tar_of({**FILES, "../outside": b"x"}), "damaged or unsafe .*outside the destination"),
        (tar_of(FILES, link="/etc/passwd"), "damaged or unsafe .*absolute path"),
        (zip_of(FILES)[:-30], "damaged or unsafe"),
        (b"more" + zip_of(FILES), "has no end, or bytes before or after its members"),
        (tar_of(FILES, form="")[:1024], "has no end, or bytes before or after its members"),  # between two members
        (tar_of(FILES, form="") * 2, "has no end, or bytes before or after its members"),
    ],
)
def test_a_damaged_or_unsafe_archive_is_refused(content, words, tmp_path):
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(UserError, match=f"archive .*{words}") as error:
        unpack(tmp_path / "archive", tmp_path / "unpacked")
    assert "\n" not in str(error.value)
    assert not any("outside" in name or name == "etc/passwd" for name in files_below(tmp_path))


def stand_ins(data: DataSet) -> dict[str, bytes]:
    """The content of each item, and of each file of a list: a file, or a line, of each count."""
    counted: dict[str, dict[str, bytes]] = {}
    for count in data.counts:
        name = count.lines[0] if count.lines else count.files[-1].replace("**", "0").replace("[pn]*", "pos")
        lines = ",".join(["x"] * (count.columns or 1)) + "\n"
        counted[count.field] = {name.replace("*", "1"): lines.encode() * (count.header + 1)}
    contents = {}
    for item in data.items:
        files = {name: content for field in item.gives for name, content in counted[field].items()}
        if item.list_of:
            contents |= {item.name: "\n".join(files).encode(), **files}
        elif item.unpacks:
            inside = {f"top/{name.removeprefix(item.unpacks['to'] + '/')}": x for name, x in files.items()}
            contents[item.name] = (zip_of if item.name.endswith(".zip") else tar_of)(inside)
        elif item.table:
            contents[item.name] = gzip.compress(",".join(map(str, range(item.table["columns"]))).encode())
        else:
            contents[item.name] = b"".join(files.values())
    return contents


@pytest.fixture
def hosts(host, monkeypatch):
    """The data sets with the sizes, checksums and counts of the stand-ins, and their addresses on the test's host."""
    small = {}
    for name, data in data_sets().items():
        items, contents = [], stand_ins(data)
        for item in data.items:
            content = contents[item.name]
            checksum = item.sha256 and hashlib.sha256(content).hexdigest()
            urls = {field: getattr(item, field) for field in ("address", "list_of")}
            urls = {field: url and url.replace("https://", f"{host.address}/") for field, url in urls.items()}
            items.append(dataclasses.replace(item, bytes=item.bytes and len(content), sha256=checksum, **urls))
            if item.address is not None:
                host.files[item.address.removeprefix("https://")] = content
            for path in contents if item.list_of else ():
                host.files[f"{item.list_of}{path}".removeprefix("https://")] = contents[path]
        counts = [dataclasses.replace(count, expected=1) for count in data.counts]
        small[name] = dataclasses.replace(data, items=items, counts=counts)
    for module in ("cab.cli.data", "cab.data.sources"):
        monkeypatch.setattr(f"{module}.data_sets", lambda: small)
    return small


def test_every_data_set_arrives_where_it_is_counted(hosts, host, tmp_path):
    from_hosts = [each for each in hosts.values() if not each.has_manual_item]
    for each in from_hosts:
        inventory, manual_steps = download(each, tmp_path)
        assert (inventory.state, manual_steps) == (State.READY, []), each.name
        assert inventory.folder == tmp_path / each.folders[0]
        assert take_inventory(each, tmp_path, thorough=True).state is State.READY
        recorded = json.loads((inventory.folder / f"cab-data-{each.name}.json").read_text())["files"]
        assert {item.name for item in each.items} <= recorded.keys()
    assert not any("/." in f"/{name}" or "tmp" in name for name in files_below(tmp_path))
    host.requests.clear()
    assert all(download(each, tmp_path)[0].state is State.READY for each in from_hosts)
    assert host.requests == [], "existing files are not downloaded again"
    header, row = (tmp_path / "lstf/ECL.csv").read_text().splitlines()
    assert header == ",".join(["date", *(f"MT_{number:03d}" for number in range(321))])
    assert row.startswith("2012-01-01 00:00:00,0,1,2,")


@pytest.mark.parametrize(("name", "form"), [("weather", "file"), ("pcn", "mirror"), ("ffhq", "unpacked")])
def test_what_a_person_downloads_is_put_into_its_place(name, form, hosts, host, tmp_path):
    downloads, root = tmp_path / "downloads", tmp_path / "data"
    [by_hand] = [item for item in hosts[name].items if item.address is None]
    inventory, manual_steps = download(hosts[name], root)
    assert manual_steps == [by_hand.by_hand]
    assert inventory.state is (State.PARTIAL if name == "pcn" else State.MISSING)
    downloads.mkdir()
    for file, content in stand_ins(data_sets()[name]).items():
        (downloads / file).write_bytes(content)
        host.files[f"mirror/{file}"] = content
    source = f"{host.address}/mirror/" if form == "mirror" else str(downloads / by_hand.name)
    if form == "unpacked":
        shutil.unpack_archive(source, downloads / "unpacked", "zip")
        source = str(downloads / "unpacked")
    inventory, manual_steps = download(hosts[name], root, source=source)
    assert (inventory.state, manual_steps) == (State.READY, [])


@pytest.mark.parametrize(("name", "end"), [("ljspeech", "ljspeech_mfa.zip"), ("pg19", "test/1.txt")])
def test_the_next_download_fetches_what_is_missing(name, end, hosts, host, tmp_path):
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


@pytest.mark.parametrize(
    ("name", "file", "content", "lost", "words"),
    [
        ("pg19", "train_files.txt", b"train/1.txt\n/etc/passwd\n", "", "which is not a path below"),
        ("pg19", "train_files.txt", b"train/1.txt\ntrain/../../x.txt\n", "", "which is not a path below"),
        ("ljspeech", "ljspeech_mfa.zip", zip_of({"another.txt": b""}), "TextGrid", "it is a different archive"),
        ("ecl", "electricity.txt.gz", gzip.compress(b"1,2,3\n", mtime=0), "", "line 1: 3 numbers instead of 321"),
    ],
)
def test_a_wrong_file_without_a_known_checksum_is_not_kept(name, file, content, lost, words, hosts, host, tmp_path):
    host.files[host.path(file)] = content
    items = [dataclasses.replace(item, bytes=None, sha256=None) for item in hosts[name].items]
    data = dataclasses.replace(hosts[name], items=items)
    with pytest.raises(UserError, match=words):
        download(data, tmp_path)
    assert not [path for path in files_below(tmp_path) if lost in path or ".cab-data" in path]


def test_two_downloads_at_once_fetch_each_file_once(hosts, host, tmp_path):
    with ThreadPoolExecutor() as pool:
        list(pool.map(download, [hosts["gpt2_bpe"]] * 2, [tmp_path] * 2))
    assert len(host.requests) == 2


@pytest.mark.usefixtures("hosts")
def test_the_command_replaces_a_file_with_another_content_and_names_manual_steps(host, tmp_path, cab):
    file, published = tmp_path / "lstf/ETTh1.csv", host.files[host.path("ETTh1.csv")]
    file.parent.mkdir()
    file.write_bytes(published.replace(b"x", b"y"))  # the same size and number of rows
    assert cab("data", "download", "etth1", "--data-root", tmp_path).out == f"etth1 is ready in {tmp_path}/lstf\n"
    assert file.read_bytes() == published
    shown = cab("data", "download", "pcn", "--data-root", tmp_path, status=1).out
    assert f"--data-root {tmp_path} --source DOWNLOADED_FILE_OR_FOLDER" in shown


def test_a_run_downloads_data_and_tokenizers_only_if_it_is_configured_to(tmp_path, monkeypatch):
    names: list[str] = []
    monkeypatch.setattr("cab.data.download.download", lambda each, _: (names.append(each.name), []))
    overrides = ["task=lm", "dataset=pg19", "attention=vanilla", "pattern=CS", "preset=paper"]
    config = compose([*overrides, f"data_root={tmp_path}"])
    downloading, other = (Cell.from_config({**config, "data": {"download": download}}) for download in ("yes", False))
    assert downloading.hash == other.hash, "the hash of a cell does not depend on the source of its data"
    for each, expected in ((other, []), (downloading, ["pg19", "gpt2_bpe"])):
        with pytest.raises(UserError, match="cab data download "):
            load_data(each)
        assert names == expected
    with pytest.raises(UserError, match="requires a folder for the data"):
        load_data(Cell.from_config({**config, "data_root": None, "data": {"download": True}}))
