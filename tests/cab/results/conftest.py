"""Result records to build leaderboards from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from cab.metric import Metric
from cab.records.record import Record
from cab.results.load import FRAME_COLUMNS, rows_of
from tests.helpers.made_records import make_record


def frame_of(records: Iterable[Record], folder: Path = Path("own")) -> pd.DataFrame:
    """The frame of records, as if they were in a folder."""
    rows = rows_of([(folder / f"{record.hash}.json", record) for record in records])
    return pd.DataFrame(rows, columns=list(FRAME_COLUMNS))


@pytest.fixture
def add(tmp_path: Path) -> Callable[..., Path]:
    """Write a record into ``tmp_path / "results"``; gives its path."""

    def write(metrics: Mapping[str, float | None] | Sequence[Metric], **changes: Any) -> Path:
        return make_record(metrics, **changes).write(tmp_path / "results")

    return write
