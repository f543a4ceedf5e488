"""`cab data list` and `cab data verify` compare samples, complete and damaged data sets with the published counts."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.data.check import State, take_inventory, unpublished_files
from cab.data.sources import Count, DataSet, Item, data_set, data_sets
from cab.errors import UserError
from cab.registry.names import is_generated
from cab.registry.registries import TASKS


def test_every_data_set_of_every_task_is_described() -> None:
    tasks = [task for task in TASKS if task.name != "probe"]  # which makes all of its data sets
    used = {(task.name, name) for task in tasks for name in task.datasets if not is_generated(name)}
    for task, name in used:
        assert task in data_set(name).tasks
    beside = {"celebahq", "gpt2_bpe", "bart_bpe"}  # what SR is scored on, and the published tokenizers
    assert set(data_sets()) - {name for _, name in used} == beside


@pytest.mark.parametrize("name", data_sets())
def test_a_description_is_complete_and_invents_nothing(name: str) -> None:
    each = data_sets()[name]
    whats = [count.field for count in each.counts]
    assert {field for item in each.items for field in item.gives} <= set(whats)
    assert each.homepage.startswith("https://")
    for count in each.counts:
        assert bool(count.files) != bool(count.lines)
        assert count.expected > 0
        assert count.source
    for item in each.items:
        assert (item.address is None) == bool(item.by_hand)
        assert item.address is None or item.address.startswith("https://")
        assert bool(item.source) == bool(item.sha256 or item.bytes), f"{item.name}: where is it known from?"
        assert item.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", item.sha256)


SAMPLES = {
    "etth1": (State.READY, {"rows": (17_420, 17_420), "checksums": (1, 1)}),
    "weather": (State.READY, {"rows": (35_064, 35_064)}),
    "pg19": (State.PARTIAL, {"training books": (5, 28_602), "validation books": (1, 50), "test books": (2, 100)}),
    "ljspeech": (State.PARTIAL, {"clips": (32, 13_100), "texts": (32, 13_100), "alignments": (32, 13_100)}),
    "ffhq": (State.PARTIAL, {"images": (13, 70_000), "low-resolution partners": (13, 70_000)}),
    "celebahq": (State.MISSING, {"images": (0, 30_000), "low-resolution partners": (0, 30_000)}),
    "cola": (State.MISSING, {"training examples": (0, 8_551), "dev examples": (0, 1_043)}),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_compared_with_the_published_counts(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, counts = SAMPLES[name]
    root = tmp_path if state is State.MISSING else request.getfixturevalue("samples")
    inventory = take_inventory(data_set(name), root, thorough=True)
    assert inventory.state is state
    assert {finding.field: (finding.actual, finding.published) for finding in inventory.findings} == counts
    assert take_inventory(data_set(name), root).state is state
    assert main(["data", "verify", name, "--data-root", str(root)]) == (0 if state is State.READY else 1)
    said = capsys.readouterr().out
    assert f"{name} is {state} in {root}" in said
    for field, (actual, published) in counts.items():
        verdict = "complete" if actual == published else f"{published - actual:,} missing"
        assert re.search(rf"{field} +{actual:,} +{published:,}  {verdict}", said)


def test_the_list_names_source_licence_place_and_state(
    official_layout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "list", "--data-root", str(official_layout), "--csv"]) == 0
    rows = {row["data"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert rows.keys() == data_sets().keys()
    assert rows["etth1"]["state"] == "ready"
    assert rows["etth1"]["size"] == "2.6 MB"
    assert rows["pg19"]["tasks"] == "lm mlm lm_recurrent"
    assert rows["celebahq"]["download"] == "manual download"
    assert main(["data", "list", "etth1"]) == 0
    said = capsys.readouterr().out
    assert "path: DATA/lstf" in said
    assert "license: CC BY-ND 4.0 (may be redistributed unmodified" in said
    assert "etth2" not in said


SMALL = DataSet(
    name="small",
    title="two books and a table",
    tasks=["lm"],
    homepage="https://example.org",
    license="CC0",
    license_notes="none",
    folders=["small", "."],
    items=[Item(name="table.csv", address="https://example.org/table.csv", gives=["rows"])],
    counts=[
        Count(field="books", files=["*.txt"], expected=2, source="here"),
        Count(field="rows", lines=["table.csv", "table.csv.gz"], header=1, columns=2, expected=3, source="here"),
    ],
)


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    for name in ("1.txt", "2.txt"):
        (folder / name).write_text("a book")
    (folder / "table.csv").write_text("date,a\n1,2\n3,4\n5,6")  # the last line is not terminated
    return folder


def state(folder: Path) -> State:
    return take_inventory(SMALL, folder.parent, thorough=True).state


def test_the_state_follows_from_the_files(complete: Path) -> None:
    assert state(complete) is State.READY
    (complete / "2.txt").unlink()
    assert state(complete) is State.PARTIAL
    (complete / "1.txt").unlink()
    (complete / "table.csv").unlink()
    assert state(complete) is State.MISSING


def test_files_in_another_of_its_folders_are_found(complete: Path) -> None:
    for path in list(complete.iterdir()):
        path.rename(complete.parent / path.name)
    assert state(complete) is State.READY


def test_a_packed_table_is_counted_and_a_truncated_one_is_damaged(complete: Path) -> None:
    packed = gzip.compress((complete / "table.csv").read_bytes())
    (complete / "table.csv").unlink()
    (complete / "table.csv.gz").write_bytes(packed)
    assert state(complete) is State.READY
    (complete / "table.csv.gz").write_bytes(packed[:-4])
    assert state(complete) is State.DAMAGED


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("table.csv", "date,a,b\n1,2,3\n"),
        ("table.csv", "date,a\n1,2\n3,4\n5,6\n7,8\n"),
        ("2.txt", ""),
        ("cab-data-small.json", json.dumps({"files": {"1.txt": {"sha256": "0" * 64}}})),
    ],
)
def test_another_edition_or_an_empty_file_is_damaged(file: str, text: str, complete: Path) -> None:
    (complete / file).write_text(text)
    assert state(complete) is State.DAMAGED


@pytest.mark.parametrize("content", ["[]", "{", '{"files": 3}', '{"files": {"1.txt": {"sha256": "short"}}}', "\xff"])
def test_a_file_that_is_no_record_is_refused(content: str, complete: Path) -> None:
    (complete / "cab-data-small.json").write_text(content)
    with pytest.raises(UserError, match="was not written by `cab data download`: delete it"):
        state(complete)


def test_files_that_are_not_the_published_ones_are_named(tmp_path: Path) -> None:
    etth1 = data_sets()["etth1"]
    assert unpublished_files(etth1, tmp_path) == []
    (tmp_path / "lstf").mkdir()
    (tmp_path / "lstf" / "ETTh1.csv").write_text("x")
    assert unpublished_files(etth1, tmp_path) == ["ETTh1.csv"]
