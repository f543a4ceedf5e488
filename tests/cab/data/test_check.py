"""`cab data list` and `cab data verify` compare data sets on disk with the published counts."""

import gzip
import re

import pytest

from cab.data.check import State, take_inventory, unpublished_files
from cab.data.sources import Count, DataSet, Item, data_set, data_sets
from cab.errors import UserError
from cab.registry.names import is_generated
from cab.registry.registries import TASKS
from tests.helpers.tasks.layouts import put
from tests.helpers.tasks.records import FILES, RECORDS


def test_every_data_set_of_every_task_is_described():
    used = {"celebahq", "gpt2_bpe", "bart_bpe"}  # what SR is scored on, and the published tokenizers
    for task in (task for task in TASKS if task.name != "probe"):  # which makes all of its data sets
        for name in (name for name in task.datasets if not is_generated(name)):
            assert task.name in data_set(name).tasks
            used.add(name)
    assert set(data_sets()) == used


@pytest.mark.parametrize("name", data_sets())
def test_a_description_is_complete_and_invents_nothing(name):
    each = data_sets()[name]
    assert {field for item in each.items for field in item.gives} <= {count.field for count in each.counts}
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


@pytest.mark.parametrize(("task", "name"), [case for case in FILES if case[0] != "sr"])  # whose sizes are others
def test_files_are_counted_where_their_task_reads_them(task, name, tmp_path, cab):
    RECORDS[task].data[name].write(tmp_path)
    inventory = take_inventory(data_set(name), tmp_path, thorough=True)
    assert all(finding.actual for finding in inventory.findings if finding.field != "checksums")
    shown = cab("data", "verify", name, "--data-root", tmp_path, status=inventory.state is not State.READY).out
    for count, finding in zip(data_set(name).counts, inventory.findings, strict=False):
        assert re.search(rf"{count.field} +{finding.actual:,} +{count.expected:,} ", shown)


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


PACKED = gzip.compress(b"date,a\n1,2\n3,4\n5,6")
COMPLETE = {"1.txt": b"a book", "2.txt": b"a book", "table.csv": b"date,a\n1,2\n3,4\n5,6"}  # no line feed at the end


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, State.READY),
        ({"table.csv": None, "table.csv.gz": PACKED}, State.READY),
        ({"2.txt": None}, State.PARTIAL),
        (dict.fromkeys(COMPLETE), State.MISSING),
        ({"table.csv": None, "table.csv.gz": PACKED[:-4]}, State.DAMAGED),
        ({"table.csv": b"date,a,b\n1,2,3\n"}, State.DAMAGED),
        ({"table.csv": b"date,a\n1,2\n3,4\n5,6\n7,8\n"}, State.DAMAGED),
        ({"2.txt": b""}, State.DAMAGED),
        ({"cab-data-small.json": b'{"files": {"1.txt": {"sha256": "%s"}}}' % (b"0" * 64)}, State.DAMAGED),
    ],
)
def test_the_state_follows_from_the_files(changes, state, tmp_path):
    for name, content in {**COMPLETE, **changes}.items():
        if content is not None:
            put(tmp_path / "small" / name, content)
    assert take_inventory(SMALL, tmp_path, thorough=True).state is state


@pytest.mark.parametrize("content", ["{", '{"files": {"1.txt": {"sha256": "short"}}}'])
def test_a_file_that_is_no_record_is_refused(content, tmp_path):
    put(tmp_path / "small/1.txt", "a book")
    put(tmp_path / "small/cab-data-small.json", content)
    with pytest.raises(UserError, match="was not written by `cab data download`: delete it"):
        take_inventory(SMALL, tmp_path, thorough=True)


def test_files_that_are_not_the_published_ones_are_named(tmp_path):
    etth1 = data_sets()["etth1"]
    assert unpublished_files(etth1, tmp_path) == []
    put(tmp_path / "lstf/ETTh1.csv", "x")
    assert unpublished_files(etth1, tmp_path) == ["ETTh1.csv"]
