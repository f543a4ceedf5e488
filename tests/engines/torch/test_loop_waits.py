"""A training step waits for no GPU: counted for every task on a simulated device, in a process of its own."""

from __future__ import annotations

import json

import pytest

from tests.helpers.command import run_module
from tests.helpers.runs.step_waits import CELLS, STEPS


@pytest.mark.slow
def test_a_read_in_ten_steps_and_no_blocking_copy():
    """And waits that are planted in two steps of two micro-batches are counted."""
    process = run_module("tests.helpers.runs.step_waits", *CELLS, "planted lm")
    assert process.returncode == 0, process.stderr[-2000:]
    table = json.loads(process.stdout)
    for name in CELLS:
        counts = table.pop(name)
        assert sum(counts["reads"].values()) <= STEPS // 10, (name, counts["reads"])
        assert counts["copies"] == {}, name
        assert counts["device"] == pytest.approx(counts["cpu"], rel=1e-5), name
    found = {name: (sum(x["reads"].values()), sum(x["copies"].values())) for name, x in table.items()}
    assert found == {"item": (4, 0), "mask": (4, 0), "copy": (0, 4), "index": (0, 4), "nothing": (0, 0)}
