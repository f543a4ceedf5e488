"""What an attention asks of a training loop is the same in fairseq's as in ours."""

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
    "sum, recomputed activations": ("sum", "backbone.checkpoint_activations=true"),
    "bfloat16": ("lm", "trainer.precision=bf16-mixed"),
}
SCALED = ("unscaled", "scaled")
"""Two runs of fairseq with a large eps of Adam, which shows in which scale the gradients are."""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
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
    cell = Ours.make("lm", "centered", "trainer.eps=0.01")
    batches, arguments = cell.batches, cell.arguments(folder / "scaled")
    weights = fairseq_weights(cell.backbone)
    for amp in ([], ["--amp"]):
        cases.append({"arguments": [*arguments, *amp], "weights": weights, "batches": batches})
    answers = dict(zip([*ours, *SCALED], ask_fairseq(cases, folder), strict=True))
    yield {name: (ours.get(name, cell), answer) for name, answer in answers.items()}
    del ATTENTIONS._entries["centered"]


@pytest.mark.parametrize("name", CASES)
def test_losses_buffers_and_rates(both, name):
    cell, theirs = both[name]
    before = {key: value.clone() for key, value in fairseq_weights(cell.backbone).items()}
    losses = cell.train()
    tolerance = 1e-2 if name == "bfloat16" else 1e-4
    assert losses == pytest.approx(theirs["losses"], abs=tolerance)
    after = fairseq_weights(cell.backbone)
    for kind in ("mean", "gain", "shift", "q_proj.weight"):
        slot = "encoder_attn" if name.startswith("sum") else "self_attn"
        names = [key for key in after if key.endswith(f"{slot}.{kind}")]
        assert len(names) == 2
        for key in names:
            assert (after[key] - before[key]).abs().max() > 1e-3, f"{key} has not changed"
            torch.testing.assert_close(theirs["trained_weights"][key], after[key], rtol=0, atol=tolerance, msg=key)


def test_scaled_gradients_are_divided_by_their_scale_once(both):
    """In fairseq's own step they are divided twice."""
    losses = [both[name][1]["losses"] for name in SCALED]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_bfloat16_is_used(both):
    """Ten steps from the same weights, on the same batches."""
    assert both["bfloat16"][1]["losses"] != both["lm"][1]["losses"]
