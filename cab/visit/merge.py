"""The tables of a visit beside those of earlier ones: rows of the same question are replaced, others stay."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from cab.errors import UserError
from cab.visit.conduct import machine_of
from cab.visit.summary import Row, read_table, summary
from cab.visit.visit import TABLES

KEYS = {
    "parts": ("part",),
    "verify": ("attention", "pattern", "check"),
    "agreement": ("attention", "pattern", "form", "dtype", "length", "padded"),
    "training": ("what", "task", "backbone", "pattern"),
    "efficiency": (
        *("attention", "pattern", "phase", "length", "protocol", "batch_size", "embed_dim", "num_heads", "dtype"),
    ),
    "throughput": ("attention", "form", "dtype", "length", "batch_size"),
    "suite": ("task", "backbone", "pattern", "attention"),
}
"""What tells two rows of a table apart."""

MACHINES = (
    "visit",
    "gpu",
    "driver",
    "cuda",
    "torch",
    "triton",
    "python",
    "cpu",
    "threads",
    "platform",
    "commit",
    "dirty",
)


def merge(folder: Path, into: Path | None) -> Path:
    """Adds the tables in ``folder`` to those of ``into``, by default results/efficiency/NAME-OF-THE-GPU.

    Every row gets a column ``visit``; ``machines.csv`` says what each visit ran on, ``summary.txt`` is the last one's.

    Raises:
        ValueError: no visit in ``folder``, or one to a CPU and no folder named for it.
    """
    facts = machine_of(folder)
    if into is None:
        if not facts.get("gpu"):
            raise UserError(f"{folder} is a visit to a CPU: say where it belongs with --into FOLDER")
        into = Path("results/efficiency") / slug(facts["gpu"])
    into.mkdir(parents=True, exist_ok=True)
    visit = facts["visited"]
    for name, columns in TABLES.items():
        new = [{**row, "visit": visit} for row in read_table(folder, name)]
        add(into, name, (*columns, "visit"), KEYS[name], new)
    machine = {name: str(facts.get(name, "")) for name in MACHINES} | {"visit": visit}
    add(into, "machines", MACHINES, ("visit",), [machine])
    (into / "summary.txt").write_text(summary(folder) + "\n")
    return into


def add(folder: Path, name: str, columns: tuple[str, ...], keys: tuple[str, ...], new: list[Row]) -> None:
    """Writes the old rows and the new, a new one in the place of the old one that has its keys."""
    rows = {tuple(row.get(key, "") for key in keys): row for row in (*read_table(folder, name), *new)}
    if not rows:
        return
    with (folder / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


def slug(gpu: str) -> str:
    """``NVIDIA H200`` is h200.

    >>> slug("NVIDIA A100-SXM4-80GB")
    'a100-sxm4-80gb'
    """
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower().removeprefix("nvidia")).strip("-")
