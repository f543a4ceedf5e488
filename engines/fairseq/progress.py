"""What fairseq's log says of a training: losses by step, in nats."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tqdm import tqdm

STATISTICS = re.compile(r"\| (train_inner|valid|test) \| (\{.*\})$")


def statistics(line: str) -> tuple[str, dict[str, Any]] | None:
    """The kind (``train_inner``, ``valid``, ``test``) and the numbers of a line that has some."""
    match = STATISTICS.search(line.rstrip())
    return None if match is None else (match[1], json.loads(match[2]))


def history(lines: Iterable[str]) -> list[dict[str, float | None]]:
    """Entries by step. Where a run was cut and went on, the later word counts."""
    entries: dict[int, dict[str, float | None]] = {}
    for line in lines:
        found = statistics(line)
        if found is None:
            continue
        kind, numbers = found
        prefix, name = ("", "loss") if kind == "train_inner" else (f"{kind}_", "validation")
        step = int(numbers[f"{prefix}num_updates"])
        entry = entries.setdefault(step, {"step": step, "loss": None, "validation": None})
        entry[name] = float(numbers[f"{prefix}loss"]) * math.log(2)
        if kind == "train_inner" and "auxiliary_loss" in numbers:
            entry["auxiliary_loss"] = float(numbers["auxiliary_loss"])
    return [entries[step] for step in sorted(entries)]


def read_history(log: Path) -> list[dict[str, float | None]]:
    with log.open() as lines:
        return history(lines)


class Progress:
    """Shows a training as it goes on: a bar on a terminal, and the validations in words.

    Attributes:
        step: the last that was heard of.
    """

    def __init__(self, title: str, total: int | None) -> None:
        self.step = 0
        self._bar = tqdm(
            desc=title, total=total, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False, dynamic_ncols=True
        )

    def __call__(self, line: str) -> None:
        """Take notice of one line of the log."""
        for entry in history([line]):
            self.step = int(entry["step"] or 0)
            self._bar.n = self.step
            self._bar.set_postfix({name: f"{value:.4f}" for name, value in entry.items() if value and name != "step"})
            if entry["validation"] is not None:
                self._bar.write(f"fairseq: step {self.step}, validation {entry['validation']:.4f}", file=sys.stderr)

    def close(self) -> None:
        self._bar.close()
