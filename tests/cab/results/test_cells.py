"""The anchors of the suite are committed results of the settings that are run."""

from __future__ import annotations

from pathlib import Path

from cab.records.files import REFERENCE_DIRS
from cab.records.record import records_in
from cab.results.cells import ANCHORS_FILE
from tools.suite.suite_anchors import write_anchors


def test_committed_anchors_are_of_committed_results(tmp_path: Path) -> None:
    """Results of other settings than those of `cab run suite=mini` are not written."""
    written = tmp_path / "anchors.csv"
    write_anchors([record for folder in REFERENCE_DIRS for _, record in records_in(folder, [])], written)
    assert set(ANCHORS_FILE.read_text().splitlines()) <= set(written.read_text().splitlines())
