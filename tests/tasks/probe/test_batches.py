"""Small probes, and sizes that do not fit."""

from __future__ import annotations

from typing import Any

import pytest

from cab import UserError
from tasks.probe.task import Probe

SMALL: dict[str, dict[str, Any]] = {
    "mad_noisy": {"noise": 0.4, "vocab_size": 32},
    "noisy": {"noise": 0.5},
    "mad_memorization": {"vocab_size": 64},
    "mqar": {"vocab_size": 64, "pairs": 4},
}


def small(dataset: str) -> Probe:
    sizes = {"vocab_size": 16, "length": 32, "pairs": 8, "longer_length": 40, "examples": 40, "test_examples": 20}
    task = Probe(dataset=dataset, **{**sizes, **SMALL.get(dataset, {})})
    task.check()
    task.setup(None)
    return task


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dataset": "recall", "pairs": 20}, "raise task.vocab_size to 20"),
        ({"dataset": "copying", "noise": 0.2}, "task.noise applies to noisy and mad_noisy"),
        ({"dataset": "noisy", "noise": 1.0}, "from 0 to below 1"),
        ({"dataset": "mqar", "vocab_size": 64, "length": 32}, "task.length must be at least 64"),
        ({"dataset": "mqar"}, "task.vocab_size must be at least 34"),
        ({"dataset": "mad_noisy"}, "task.vocab_size must be at least 20"),
        ({"dataset": "mad_recall", "length": 33}, "must be even"),
        ({"dataset": "mad_copying", "length": 32}, "task.length must be at least 34"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        Probe(**options).check()
