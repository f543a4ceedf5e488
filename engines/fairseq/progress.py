"""Losses in nats by step, parsed from fairseq's log."""

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
    """Return the kind (``train_inner``, ``valid``, ``test``) and the statistics of a line, or None."""
    match = STATISTICS.search(line.rstrip())
    return None if match is None else (match[1], json.loads(match[2]))


def history(lines: Iterable[str]) -> list[dict[str, float | None]]:
    """Return entries by step. After an interruption, later entries replace earlier ones."""
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
    """Return :func:`history` of a log file."""
    with log.open() as lines:
        return history(lines)


class Progress:
    """Show the progress of a training: a bar on a terminal, and validation losses.

    Attributes:
        step: the last reported step.
    """

    def __init__(self, title: str, total: int | None) -> None:
        self.step = 0
        self._bar = tqdm(
            desc=title, total=total, file=sys.stderr, disable=not sys.stderr.isatty(), leave=False, dynamic_ncols=True
        )

    def __call__(self, line: str) -> None:
        """Process one line of the log."""
        for entry in history([line]):
            self.step = int(entry["step"] or 0)
            self._bar.n = self.step
            self._bar.set_postfix({name: f"{value:.4f}" for name, value in entry.items() if value and name != "step"})
            if entry["validation"] is not None:
                self._bar.write(f"fairseq: step {self.step}, validation {entry['validation']:.4f}", file=sys.stderr)

    def close(self) -> None:
        self._bar.close()
