"""What `cab data list` and `check` say of samples, whole sets and damaged ones, against the published counts."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.data.check import State, take_stock
from cab.data.sources import Count, DataSet, Item, data_set, data_sets
from cab.errors import UserError
from cab.records.results import is_generated
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
    assert len(set(whats)) == len(whats)
    assert each.homepage.startswith("https://")
    assert each.license
    assert each.license_notes
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
    "etth2": (State.READY, {"rows": (17_420, 17_420), "checksums": (1, 1)}),
    "ettm1": (State.READY, {"rows": (69_680, 69_680)}),
    "ecl": (State.MISSING, {"rows": (0, 26_304)}),
    "weather": (State.READY, {"rows": (35_064, 35_064)}),
    "pg19": (
        State.PARTIAL,
        {"training books": (5, 28_602), "validation books": (1, 50), "test books": (2, 100)},
    ),
    "multi_news": (
        State.PARTIAL,
        {
            "train documents": (24, 44_972),
            "train summaries": (24, 44_972),
            "val documents": (8, 5_622),
            "val summaries": (8, 5_622),
            "test documents": (8, 5_622),
            "test summaries": (8, 5_622),
        },
    ),
    "ljspeech": (State.PARTIAL, {"clips": (32, 13_100), "texts": (32, 13_100), "alignments": (32, 13_100)}),
    "pcn": (
        State.PARTIAL,
        {
            "lists": (1, 1),
            "training shapes": (1, 28_974),
            "training views": (8, 231_792),
            "validation shapes": (0, 800),
            "validation views": (0, 800),
            "test shapes": (0, 1_200),
            "test views": (0, 1_200),
            "checksums": (1, 1),
        },
    ),
    "ffhq": (State.PARTIAL, {"images": (13, 70_000), "low-resolution partners": (13, 70_000)}),
    "celebahq": (State.MISSING, {"images": (0, 30_000), "low-resolution partners": (0, 30_000)}),
    "wikitext103": (
        State.MISSING,
        {"lines of training": (0, 1_801_350), "lines of validation": (0, 3_760), "lines of test": (0, 4_358)},
    ),
    "wikitext2": (
        State.MISSING,
        {"lines of training": (0, 36_718), "lines of validation": (0, 3_760), "lines of test": (0, 4_358)},
    ),
    "mnli": (
        State.MISSING,
        {
            "training examples": (0, 392_702),
            "matched dev examples": (0, 9_815),
            "mismatched dev examples": (0, 9_832),
        },
    ),
    **{
        name: (State.MISSING, {"training examples": (0, train), "dev examples": (0, dev)})
        for name, train, dev in (
            ("cola", 8_551, 1_043),
            ("sst2", 67_349, 872),
            ("mrpc", 3_668, 408),
            ("qqp", 1, 1),
            ("qnli", 104_743, 5_463),
            ("rte", 2_490, 277),
            ("stsb", 5_749, 1_500),
        )
    },
    "listops": (
        State.MISSING,
        {"training trees": (0, 96_000), "validation trees": (0, 2_000), "test trees": (0, 2_000)},
    ),
    "text": (State.MISSING, {"training reviews": (0, 25_000), "test reviews": (0, 25_000)}),
    "retrieval": (
        State.MISSING,
        {"training pairs": (0, 147_086), "validation pairs": (0, 18_090), "test pairs": (0, 17_437)},
    ),
    "image": (State.MISSING, {"training batches": (0, 5), "test batches": (0, 1)}),
    "pathfinder": (State.MISSING, {"images": (0, 200_000)}),
    "pathx": (State.MISSING, {"images": (0, 200_000)}),
    "gpt2_bpe": (State.MISSING, {"vocabularies": (0, 1), "merges": (0, 50_000)}),
    "bart_bpe": (State.MISSING, {"tokenizers": (0, 1)}),
}


def test_no_data_set_is_left_out_of_the_samples() -> None:
    assert SAMPLES.keys() == data_sets().keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_counted_against_what_was_published(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, counts = SAMPLES[name]
    root = tmp_path if state is State.MISSING else request.getfixturevalue("samples")
    stock = take_stock(data_set(name), root, thorough=True)
    assert stock.state is state
    assert {finding.field: (finding.found, finding.expected) for finding in stock.findings} == counts
    assert take_stock(data_set(name), root).state is state
    assert main(["data", "verify", name, "--data-root", str(root)]) == (0 if state is State.READY else 1)
    said = capsys.readouterr().out
    assert f"{name} is {state} in {root}" in said
    for field, (found, expected) in counts.items():
        verdict = "complete" if found == expected else f"{expected - found:,} missing"
        assert re.search(rf"{field} +{found:,} +{expected:,}  {verdict}", said)


def test_the_list_names_source_licence_place_and_state(
    official_layout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "list", "--data-root", str(official_layout), "--csv"]) == 0
    rows = {row["data"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert rows.keys() == data_sets().keys()
    assert rows["etth1"]["state"] == "ready"
    assert rows["etth1"]["size"] == "2.6 MB"
    assert rows["pg19"]["tasks"] == "lm mlm"
    assert rows["celebahq"]["download"] == "manual download"
    monkeypatch.delenv("CAB_DATA", raising=False)
    assert main(["data", "list"]) == 0
    said = capsys.readouterr().out
    assert "path: DATA/lstf" in said
    assert "license: CC BY-ND 4.0 (may be passed on whole" in said


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
def whole(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    for name in ("1.txt", "2.txt"):
        (folder / name).write_text("a book")
    (folder / "table.csv").write_text("date,a\n1,2\n3,4\n5,6")  # no end of its last line
    return folder


def state(folder: Path) -> State:
    return take_stock(SMALL, folder.parent, thorough=True).state


def test_what_is_whole_is_ready_and_what_lacks_a_file_partial(whole: Path) -> None:
    assert state(whole) is State.READY
    (whole / "2.txt").unlink()
    assert state(whole) is State.PARTIAL
    (whole / "1.txt").unlink()
    (whole / "table.csv").unlink()
    assert state(whole) is State.MISSING


def test_a_set_that_lies_in_another_of_its_folders_is_found(whole: Path) -> None:
    for path in list(whole.iterdir()):
        path.rename(whole.parent / path.name)
    assert state(whole) is State.READY


def test_a_packed_table_counts_and_a_cut_one_is_damaged(whole: Path) -> None:
    packed = gzip.compress((whole / "table.csv").read_bytes())
    (whole / "table.csv").unlink()
    (whole / "table.csv.gz").write_bytes(packed)
    assert state(whole) is State.READY
    (whole / "table.csv.gz").write_bytes(packed[:-4])
    assert state(whole) is State.DAMAGED


@pytest.mark.parametrize("text", ["date,a,b\n1,2,3\n", "date,a\n1,2\n3,4\n5,6\n7,8\n"])
def test_another_edition_is_damaged(whole: Path, text: str) -> None:
    (whole / "table.csv").write_text(text)
    assert state(whole) is State.DAMAGED


def test_an_empty_file_is_damaged(whole: Path) -> None:
    (whole / "2.txt").write_text("")
    assert state(whole) is State.DAMAGED


def test_a_file_that_is_not_what_was_recorded_is_damaged(whole: Path) -> None:
    entry = {"sha256": "0" * 64}
    (whole / "cab-data-small.json").write_text(json.dumps({"files": {"1.txt": entry}}))
    assert state(whole) is State.DAMAGED
    (whole / "cab-data-small.json").write_text("[]")
    with pytest.raises(UserError, match="was not written by `cab data download`: delete it"):
        state(whole)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["data", "verify", "ljspeach", "--data-root", "."], "unknown data set 'ljspeach': did you mean 'ljspeech'?"),
        (["data", "verify", "etth1"], "the folder of the data sets is not set: use --data-root DATA or set CAB_DATA"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CAB_DATA", raising=False)
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
