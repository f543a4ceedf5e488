"""Stored values that a change of structure must not change.

A deliberate change deletes the stored file; the next run of the test writes it again and fails once, so that the
difference is in the commit.
"""

import json
import re
import shlex
from pathlib import Path

import pytest

from cab.records.files import COMMITTED_DIRS
from cab.records.record import records_in
from cab.runner.cell import Cell, current_config
from tests.helpers.command import ROOT, cab

OUTPUT = Path(__file__).with_name("output")
TABLES = {
    "score_core_csv": "score results/core --pattern NC --csv",
    "score_paper_csv": "score results/paper --normalization official --pattern NC --csv",
    "score_pairwise": "score results/mini --pattern CC --show pairwise --csv",
    "score_check": "score results/core --check --csv",
    "correlation": "correlation results/core --pattern NC CC",
    "paper_audit": "paper audit",
}
"""One pattern or two of each score: the leaderboards below and tests/cab/results have the numbers of the others."""


def compare(name: str, text: str) -> None:
    path = OUTPUT / name
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path} was written; commit it")
    assert text == path.read_text()


def output(command: str) -> str:
    run = cab(*shlex.split(command), cwd=ROOT, COLUMNS="100", NO_COLOR="1")
    assert run.returncode in (0, 1), run.stderr
    return re.sub(r"(\.py):\d+", r"\1", run.stdout)  # without the lines of classes


@pytest.mark.parametrize("folder", COMMITTED_DIRS, ids=lambda folder: folder.name)
def test_every_committed_record_is_found(folder):
    """The configuration of every committed record, with the options of today, still has the hash of the record."""
    cells: dict[str, Cell] = {}
    for _, record in records_in(folder, []):
        same = json.dumps({**record.config, "seed": 0, "results_dir": ""}, sort_keys=True)
        if same not in cells:  # the hash of its other seeds is checked where they are read
            cells[same] = Cell.from_config(current_config(record))
            assert cells[same].hash == record.hash
    assert cells


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "paper_audit" else pytest.mark.slow) for name in TABLES]
)
def test_tables_of_commands(name):
    compare(f"{name}.txt", output(TABLES[name]))


@pytest.mark.slow
@pytest.mark.parametrize("folder", [folder.name for folder in COMMITTED_DIRS])
def test_tables_of_the_leaderboard(folder, tmp_path):
    """The committed table of each set, and that of the suite."""
    output(f"leaderboard results/{folder} --out {tmp_path}")
    committed_table = ROOT / "results" / folder / "leaderboard.csv"
    assert (tmp_path / "leaderboard.csv").read_text() == committed_table.read_text()
    if folder == "core":
        compare("leaderboard_core_suite.csv", (tmp_path / "suite.csv").read_text())
