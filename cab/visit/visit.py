"""What a part of a visit is given: a folder, a device, and tables that its rows go to as they are found."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cab.efficiency.cost import COLUMNS as COSTS
from cab.files.sanitize import csv_cell

TABLES: dict[str, tuple[str, ...]] = {
    "parts": ("part", "status", "seconds", "limit", "detail"),
    "verify": ("attention", "pattern", "check", "passed", "detail"),
    "agreement": (
        *("attention", "pattern", "form", "dtype", "length", "padded"),
        *("output_error", "gradient_error", "limit", "passed", "detail"),
    ),
    "training": ("what", "task", "backbone", "pattern", "status", "seconds", "detail"),
    "efficiency": COSTS,
    "throughput": (
        *("attention", "form", "dtype", "length", "batch_size", "status", "step_seconds", "forward", "backward"),
        *("optimizer", "tokens_per_second", "flops", "matmul_rate", "utilisation", "bytes", "detail"),
    ),
    "suite": ("task", "backbone", "pattern", "attention", "status", "seconds", "score", "harness", "detail"),
}
"""The CSVs of a visit and their columns."""

Piece = TypeVar("Piece")


@dataclass(frozen=True)
class Visit:
    """What all parts are given.

    Args:
        folder: for CSVs, records and the log.
        device: ``cuda`` or ``cpu``.
        short: a few attentions at tiny sizes, to try the code.
        share, shares: this process does every ``shares``-th piece of work, from ``share`` on.
    """

    folder: Path
    device: str
    short: bool = False
    share: int = 0
    shares: int = 1

    @property
    def low(self) -> str:
        """The precision in which GPUs are used."""
        return "float32" if self.device == "cpu" else "bfloat16"

    @property
    def compiler(self) -> str:
        """The backend of torch.compile; where the code is only tried, one that starts no compiler of C++."""
        return "aot_eager" if self.short else "inductor"

    def own(self, work: Sequence[Piece]) -> Sequence[Piece]:
        """The pieces of work of this process."""
        return work[self.share :: self.shares]

    def make_tables(self) -> None:
        """Empty CSVs, before the parts that fill them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, columns in TABLES.items():
            (self.folder / f"{name}.csv").write_text(",".join(columns) + "\n")

    def write(self, table: str, **row: Any) -> None:
        """A row, by one write: several processes share a table."""
        text = io.StringIO()
        cells = (csv_cell(_shown(row.pop(column, None))) for column in TABLES[table])
        csv.writer(text, lineterminator="\n").writerow(cells)
        assert not row, f"no columns of {table}: {row}"
        descriptor = os.open(self.folder / f"{table}.csv", os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, text.getvalue().encode())
        finally:
            os.close(descriptor)


def _shown(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else value
