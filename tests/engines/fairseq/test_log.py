"""Metrics and the history of a run, from the lines that fairseq logs."""

import json
import math
from typing import Any

import pytest

from engines.fairseq.log import Rows, history

pytestmark = pytest.mark.without_environment
BIT = math.log(2)


def training(step: int, loss: float, **more: Any) -> str:
    numbers = {"epoch": 1, "update": step / 8, "loss": str(loss), "wps": "100", "wpb": "50", "bsz": "4", "gnorm": "1.5"}
    numbers |= {"num_updates": str(step), "lr": "0.1", "learning_rate": "0.2", **more}
    return f"2026-11-28 11:13:32 | INFO | train_inner | {json.dumps(numbers)}\n"


def validation(step: int, loss: float, **more: str) -> str:
    numbers = {"epoch": 1, "valid_loss": str(loss), "valid_num_updates": str(step), **more}
    return f"2026-11-28 11:13:32 | INFO | valid | {json.dumps(numbers)}\n"


def test_rows_are_those_of_our_engine():
    """A row per four steps and per validation; a loss is the mean since the row before."""
    lines = [training(2, 8.0), training(4, 4.0), training(6, 2.0), validation(6, 3.0), training(8, 1.0), "epoch 2\n"]
    log = Rows(4)
    first, second, third = [*filter(None, map(log.read, lines)), *filter(None, [log.finish()])]
    numbers = {"learning_rate": 0.2, "gradient_norm": 1.5, "epoch": 0.5, "examples_per_second": 8.0}
    assert first == {"step": 4, "loss": pytest.approx(6 * BIT), **numbers}
    assert (second["step"], second["loss"], second["validation"]) == (6, 2 * BIT, 3 * BIT)
    assert (third["step"], third["loss"], "validation" in third) == (8, BIT, False)
    log = Rows(4)
    log.read(validation(6, 3.0, valid_nll_loss="2.0"))
    assert log.finish()["validation"] == 2 * BIT, "without the smoothing"


def test_later_entries_replace_those_of_an_interrupted_run():
    """It stopped after step 4, and resumed from step 2; the last step is an entry."""
    lines = [training(2, 8.0, auxiliary_loss="0.5"), validation(2, 7.0), training(4, 9.0), training(4, 4.0)]
    entries = history([*lines[:3], "Loaded checkpoint\n", training(3, 5.0), lines[3], training(5, 2.0)], 2)
    assert entries == [
        {"step": 2, "loss": 8 * BIT, "validation": 7 * BIT, "auxiliary_loss": 0.5},
        {"step": 4, "loss": pytest.approx(4.5 * BIT), "validation": None},
        {"step": 5, "loss": 2 * BIT, "validation": None},
    ]
