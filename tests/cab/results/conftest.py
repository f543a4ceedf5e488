"""Result records to build leaderboards from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cab.cli.main import main
from cab.metric import Metric
from cab.records.record import Record
from cab.results.load import COLUMNS, rows_of
from tests.helpers.index_results import write_suite
from tests.helpers.made_records import make_record


def frame_of(records: Iterable[Record], folder: Path = Path("own")) -> pd.DataFrame:
    """The frame of records, as if they were in a folder."""
    rows = rows_of([(folder / f"{record.hash}.json", record) for record in records])
    return pd.DataFrame(rows, columns=list(COLUMNS))


@pytest.fixture
def add(tmp_path: Path) -> Callable[..., Path]:
    """Write a record into ``tmp_path / "results"``; gives its path."""

    def write(metrics: Mapping[str, float | None] | Sequence[Metric], **changes: Any) -> Path:
        return make_record(metrics, **changes).write(tmp_path / "results")

    return write


@pytest.fixture(scope="package")
def suite_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of :func:`write_suite`."""
    return write_suite(tmp_path_factory.mktemp("page") / "results")


@pytest.fixture(scope="package")
def suite_out(suite_folder: Path) -> Path:
    """The folder of the page, with a message about a record that was cut in half."""
    path = make_record({"mse": 1.0}, hash="f" * 16).write(suite_folder)
    path.write_text(path.read_text()[:200])
    out = suite_folder.parent / "out"
    assert main(["leaderboard", str(suite_folder), "--out", str(out)]) == 0
    assert path.name in (out / "index.html").read_text().partition("Skipped files")[2]
    path.unlink()
    return out
