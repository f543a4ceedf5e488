"""What an attention asks of a training loop is the same in fairseq's as in ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cab.registry.registries import ATTENTIONS
from engines.fairseq.weights import fairseq_weights
from tests.helpers.fairseq.cells import Ours, ask_fairseq
from tests.helpers.fairseq.centered_attention import register_centered

CASES = {
    "lm": ("lm",),
    "mlm": ("mlm",),
    "micro-batches": ("lm", "trainer.batch_size=8", "trainer.micro_batch_size=4"),
    "lm, recomputed activations": ("lm", "backbone.checkpoint_activations=true"),
    "mlm, recomputed activations": ("mlm", "backbone.checkpoint_activations=true"),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Ours, dict[str, Any]]]]:
    """Each case with fairseq's answers to it. Adam's eps is small: the two add it in different places."""
    register_centered()
    folder = tmp_path_factory.mktemp("learning")
    ours = {name: Ours.make(task, "centered", "trainer.eps=1e-12", *more) for name, (task, *more) in CASES.items()}
    cases = [
        {
            "arguments": cell.arguments(folder / name.replace(" ", "-")),
            "weights": {key: value.clone() for key, value in fairseq_weights(cell.backbone).items()},
            "batches": cell.batches,
        }
        for name, cell in ours.items()
    ]
    yield {name: (ours[name], answer) for name, answer in zip(ours, ask_fairseq(cases, folder), strict=True)}
    del ATTENTIONS._entries["centered"]


@pytest.mark.parametrize("name", CASES)
def test_losses_buffers_and_rates(both: dict[str, tuple[Ours, dict[str, Any]]], name: str) -> None:
    cell, theirs = both[name]
    before = {key: value.clone() for key, value in fairseq_weights(cell.backbone).items()}
    losses = cell.train()
    assert losses == pytest.approx(theirs["losses"], abs=1e-4)
    after = fairseq_weights(cell.backbone)
    for kind in ("mean", "gain", "shift", "q_proj.weight"):
        names = [key for key in after if key.endswith(f"self_attn.{kind}")]
        assert len(names) == 2
        for key in names:
            assert (after[key] - before[key]).abs().max() > 1e-3, f"{key} has not changed"
            torch.testing.assert_close(theirs["trained_weights"][key], after[key], rtol=0, atol=1e-4, msg=key)
