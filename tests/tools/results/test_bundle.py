"""The set of a folder has the stored content of its records, and a set is bundled to the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cab.errors import UserError
from cab.records.files import REFERENCE_DIRS, SET, record_paths
from cab.records.record import Record
from tests.helpers.made_records import make_record
from tools.results.bundle import bundle


def test_a_set_has_the_records_of_a_folder(tmp_path: Path) -> None:
    records = [make_record({"mse": 1.0}, seed=seed) for seed in (2, 1)]
    for record in records:
        record.write(tmp_path / "runs")
    assert bundle(tmp_path / "runs", tmp_path / "set") == tmp_path / "set" / SET
    paths = record_paths(tmp_path / "set")
    assert [path.stem for path in paths] == sorted(record.hash for record in records)
    assert {Record.read(path).hash: Record.read(path) for path in paths} == {each.hash: each for each in records}


def test_a_committed_set_is_bundled_to_the_same_bytes(tmp_path: Path) -> None:
    """Also of records from before a change of the reader, whose stored content is kept."""
    assert bundle(REFERENCE_DIRS[1], tmp_path).read_bytes() == (REFERENCE_DIRS[1] / SET).read_bytes()


def test_nothing_is_written_if_a_record_is_not_valid(tmp_path: Path) -> None:
    path = make_record({"mse": 0.5}).write(tmp_path)
    path.write_text(path.read_text().replace("0.5", "0.1"))
    for folder, words in (("", "checksum does not match"), ("none", "has no records")):
        with pytest.raises(UserError, match=words):
            bundle(tmp_path / folder, tmp_path / "set")
    assert not (tmp_path / "set").exists()
