"""Losses in nats by step, parsed from fairseq's log."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable

log = logging.getLogger(__name__)

STATISTICS = re.compile(r"\| (train_inner|valid|test) \| (\{.*\})$")


def history(lines: Iterable[str]) -> list[dict[str, float | None]]:
    """Return entries by step. After an interruption, later entries replace earlier ones."""
    entries: dict[int, dict[str, float | None]] = {}
    for match in filter(None, (STATISTICS.search(line.rstrip()) for line in lines)):
        kind, numbers = match[1], json.loads(match[2])
        prefix, name = ("", "loss") if kind == "train_inner" else (f"{kind}_", "validation")
        step = int(numbers[f"{prefix}num_updates"])
        entry = entries.setdefault(step, {"step": step, "loss": None, "validation": None})
        entry[name] = float(numbers[f"{prefix}loss"]) * math.log(2)
        if kind == "train_inner" and "auxiliary_loss" in numbers:
            entry["auxiliary_loss"] = float(numbers["auxiliary_loss"])
    return [entries[step] for step in sorted(entries)]


class Progress:
    """Log the validation losses of a training.

    Attributes:
        step: the last reported step.
    """

    step = 0

    def __call__(self, line: str) -> None:
        """Process one line of the log."""
        for entry in history([line]):
            self.step = int(entry["step"] or 0)
            if entry["validation"] is not None:
                log.info("fairseq: step %d, validation %.4f", self.step, entry["validation"])
