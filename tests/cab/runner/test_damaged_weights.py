"""Damaged weights and checkpoints that the day draws: each is refused in one line, or loads as it is."""

from __future__ import annotations

import logging
import pickle
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cab.errors import UserError
from cab.runner.weights import load_network
from engines.torch.checkpoints import Checkpoints
from tests.cab.hostile import SCALE, SEED

pytestmark = pytest.mark.slow
COUNT = 300 * SCALE


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("code in a file was executed",))


def state() -> dict[str, Any]:
    """A checkpoint, as far as this test restores it."""
    return {"network": nn.Linear(3, 2).state_dict(), "history": {"best": [0.5, 3]}}


def hostile(path: Path, good: Any, draw: random.Random, number: int) -> None:
    """Write a file that ``torch.save`` did not write, or wrote for something else."""
    contents = [Harmful(), [], {}, 3, {"network": 3}, {"weight": torch.zeros(1)}, {"weight": 3, "bias": None}]
    if number < len(contents):
        torch.save(contents[number], path)
    elif number == len(contents):
        path.write_bytes(pickle.dumps(Harmful()))
    else:
        torch.save(good, path)
        content = bytearray(path.read_bytes())
        for _ in range(draw.choice((1, 2, 8))):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content[: draw.choice((None, draw.randrange(len(content))))])


def test_damaged_weights_are_refused_in_one_line(tmp_path: Path) -> None:
    draw, path = random.Random(SEED), tmp_path / "weights.pt"
    messages = []
    for number in range(COUNT):
        written, network = nn.Linear(3, 2).state_dict(), nn.Linear(3, 2)
        hostile(path, written, draw, number)
        try:
            load_network(network, path)
        except UserError as error:
            messages.append(f"{error}")
        else:
            loaded = network.state_dict()
            assert all(torch.equal(loaded[name], written[name]) for name in written), f"CAB_CONFORMANCE_SEED={SEED}"
    for message in messages:
        assert len(message.splitlines()) == 1, f"CAB_CONFORMANCE_SEED={SEED}: {message}"
        assert "weights_only" not in message
    assert len(messages) > COUNT // 10


def test_a_damaged_checkpoint_is_skipped_for_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw, restored = random.Random(SEED), nn.Linear(3, 2)

    def restore(found: Mapping[str, Any]) -> None:
        restored.load_state_dict(found["network"])

    for number in range(COUNT):
        torch.save(state(), tmp_path / "step-00000001.ckpt")
        hostile(tmp_path / "step-00000002.ckpt", state(), draw, number)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert Checkpoints(tmp_path).restore_newest(restore), f"CAB_CONFORMANCE_SEED={SEED}, file {number}"
        assert len(caplog.records) <= 1
