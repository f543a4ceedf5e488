"""`cab verify --record`: a row for what passed, none for what did not, and nothing twice."""

import csv
import dataclasses
import itertools
import re

import pytest

from cab import verification
from cab.records import verified
from cab.records.verified import QUICK, VerifiedRow, is_verified, read_rows, remembered, write_rows
from cab.registry.registries import ATTENTIONS
from cab.verification import select_checks

MINE = """
from itertools import count

from attentions.softmax import VanillaAttention

CALLS = count()


class Mine(VanillaAttention):
    def forward(self, query, *others, **masks):
        return super().forward(query, *others, **masks) CHANGE
"""


@pytest.fixture(autouse=True)
def _few_checks(monkeypatch, tmp_path):
    """Two checks stand for all."""
    names = ["same_seed", "length_one"]
    monkeypatch.setattr(verification, "select_checks", lambda _names, *, quick: select_checks(names, quick=quick))
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def record(tmp_path):
    return tmp_path / "verified.csv"


@pytest.fixture
def mine(tmp_path):
    """Write softmax attention with a change of its outputs into a folder."""

    def write(folder, change):
        path = tmp_path / folder / "mine.py"
        path.parent.mkdir()
        path.write_text(MINE.replace("CHANGE", change))
        return f"{path}:Mine"

    return write


def test_a_row_per_pair_and_nothing_twice(cab, record):
    arguments = ["verify", "none", "linear", "--record", record]
    out, err = cab(*arguments)
    assert out == ""
    assert "already verified: 0, to verify: 8" in err
    rows = list(csv.DictReader(record.open()))
    assert tuple(rows[0]) == verified.VERIFIED_COLUMNS
    verified_pairs = [(row["attention"], row["pattern"]) for row in rows]
    assert verified_pairs == [*itertools.product(("linear", "none"), ("NS", "CS", "NC", "CC"))]
    assert {row["mode"] for row in rows} == {"full"}
    assert all("determinism=4133" in row["max_tokens_checked"] for row in rows)
    before = record.read_bytes()
    assert "already verified: 8, to verify: 0" in cab(*arguments).err
    assert "linear CC: 2 checks, 0 failed" in cab(*arguments, "--all").err
    assert record.read_bytes() == before


def test_what_changed_is_verified_again(cab, record):
    """Rows of `none` with other code, another contract, other checks and another version of torch."""
    cab("verify", "none", "linear", "--record", record)
    rows = read_rows(record)
    changes = [{name: "0" * 16} for name in ("code_hash", "contract", "checks_hash")] + [{"torch_version": "2.0"}]
    changed = [dataclasses.replace(row, **change) for row, change in zip(rows[4:], changes, strict=True)]
    write_rows(record, [*rows[:4], *changed])
    err = cab("verify", "none", "linear", "--record", record).err
    assert "already verified: 4, to verify: 4" in err
    assert err.count("none CS: 2 checks") == 1
    assert read_rows(record) == rows


def test_the_whole_replaces_the_quick_form_and_never_the_other_way(cab, record):
    arguments = ["verify", "none", "--pattern", "NS", "--record", record]
    cab(*arguments, "--quick")
    assert read_rows(record)[0].mode == QUICK
    assert "already verified: 1," in cab(*arguments, "--quick").err
    assert "to verify: 1" in cab(*arguments).err
    cab(*arguments, "--quick", "--all")
    assert read_rows(record)[0].mode == "full"


def test_what_fails_loses_its_row_and_is_shown(cab, record, mine):
    cab("verify", mine("sound", "* 1.0"), "--pattern", "NC,NS", "--record", record)
    assert [row.pattern for row in read_rows(record)] == ["NS", "NC"]
    out, err = cab("verify", mine("broken", "* float('nan')"), "--pattern", "NS", "--record", record, status=1)
    assert re.search(r"^lengths +1 check  .* FAILED length_one: ", out, re.MULTILINE)
    assert "Mine NS: 2 checks, 1 failed: length_one" in err
    assert [row.pattern for row in read_rows(record)] == ["NC"]


def test_without_a_record_it_is_remembered_in_the_cache(cab, monkeypatch, tmp_path):
    monkeypatch.setattr(verified, "COMMITTED", tmp_path / "none.csv")
    cab("verify", "none", "--pattern", "NS")
    (row,) = read_rows(remembered())
    assert is_verified(row.code_hash, "NS")
    assert not is_verified(row.code_hash, "CS")
    assert not is_verified("", "NS")
    write_rows(remembered(), [dataclasses.replace(row, mode=QUICK)])
    assert not is_verified(row.code_hash, "NS")
    write_rows(remembered(), [dataclasses.replace(row, torch_version="2.0")])
    assert not is_verified(row.code_hash, "NS")
    remembered().write_text("something else\n")
    assert not is_verified(row.code_hash, "NS")


def test_rows_are_read_once_until_a_file_changes(cab, monkeypatch):
    cab("verify", "none", "--pattern", "NS")
    (row,) = read_rows(remembered())
    reads = []
    monkeypatch.setattr(verified, "read_rows", lambda path: reads.append(path) or read_rows(path))
    assert all((row.code_hash, "NS") in verified.verified_codes() for _ in range(3))
    assert len(reads) <= 2  # this project's file and that of the cache
    with remembered().open("a", encoding="utf-8") as file:  # as another process does
        file.write(",".join(dataclasses.astuple(dataclasses.replace(row, code_hash="other"))) + "\n")
    assert ("other", "NS") in verified.verified_codes()


def test_some_checks_are_not_all(cab):
    cab("verify", "none", "--pattern", "NS", "--checks", "same_seed")
    assert not remembered().exists()


def test_a_row_says_how_far_each_group_looked():
    row = VerifiedRow.of_today("a", "NS", dict, quick=True, reach={"causality": 130, "parameters": 0, "growth": 8192})
    assert row.max_tokens_checked == "causality=130 growth=8192"
    assert row.torch_version == verified.torch_version() == ".".join(row.torch_version.split(".")[:2])


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_stack_is_verified_after_those_parts_that_are_not(cab, mine, monkeypatch, is_sound):
    monkeypatch.setattr(ATTENTIONS, "_of_files", {})
    cab("verify", "gla")
    stack = mine("stack", "* 1.0" if is_sound else "+ next(CALLS)") + "*2,gla"
    printed = cab("verify", stack, "--csv", status=0 if is_sound else 1)
    assert "gla is already verified in CS" in printed.err
    assert {row["attention"] for row in printed.rows} == {"Mine", "Mine*2,gla"}
    passed = {"Mine", "Mine*2,gla"} if is_sound else set()
    assert {row.attention for row in read_rows(remembered())} == {"gla"} | passed
