"""Our networks and fairseq's with the same attention: same logits, same losses, same training."""

import re
from typing import Any

import pytest
import torch

from cab.registry.registries import ATTENTIONS
from engines.fairseq.weights import fairseq_weights, load_weights
from tests.helpers.fairseq.cells import STEPS, Ours, ask_fairseq
from tests.helpers.fairseq.centered_attention import register_centered

CELLS = {
    ("lm", "abc"): ("attention.num_landmarks=8",),
    ("lm", "[gla,vanilla]"): (),
    ("mlm", "local"): ("attention.window_size=16",),
    ("sum", "abc"): ("attention.num_landmarks=8", "other_attention={CS: local, NS: linear}"),
    ("sum", "[vanilla,abc]"): ("backbone.embed_layer_norm=true",),
}
LEARNING = {
    "lm": ("lm",),
    "micro-batches": ("lm", "trainer.batch_size=8", "trainer.micro_batch_size=4"),
    "mlm, recomputed activations": ("mlm", "backbone.checkpoint_activations=true"),
    "sum, recomputed activations": ("sum", "backbone.checkpoint_activations=true"),
    "bfloat16": ("lm", "trainer.precision=bf16-mixed"),
}
"""Cells whose attention asks everything of a training loop."""
SCALED = ("unscaled", "scaled")
"""Two runs of fairseq with a large eps of Adam, which shows in which scale the gradients are."""


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Each cell with fairseq's answers to it, all by one process of fairseq's."""
    register_centered()
    folder = tmp_path_factory.mktemp("agreement")
    ours: dict[Any, Ours] = {key: Ours.make(*key, *overrides) for key, overrides in CELLS.items()}
    for name, (task, *more) in LEARNING.items():  # Adam's eps is small: the two add it in different places
        ours[name] = Ours.make(task, "centered", "trainer.eps=1e-12", *more)
    ours |= dict.fromkeys(SCALED, Ours.make("lm", "centered", "trainer.eps=0.01"))
    cases = [
        {
            "arguments": [*cell.arguments(folder / str(number)), *(["--amp"] if key == "scaled" else [])],
            "weights": {name: value.clone() for name, value in fairseq_weights(cell.backbone).items()},
            "batches": cell.batches,
        }
        for number, (key, cell) in enumerate(ours.items())
    ]
    answers = ask_fairseq(cases, folder)
    yield {key: (ours[key], answer) for key, answer in zip(ours, answers, strict=True)}
    del ATTENTIONS._entries["centered"]


@pytest.mark.parametrize("key", CELLS, ids=" ".join)
def test_agreement(both, key):
    """Bounds: logits 1e-4, loss 1e-5, loss after ten steps 1e-3."""
    cell, theirs = both[key]
    logits = (cell.logits() - theirs["logits"])[cell.real()].abs().max()
    with torch.no_grad():
        loss = abs(float(cell.loss()) - theirs["loss"])
    cell.train()
    with torch.no_grad():
        after = [float(cell.loss(number)) for number in range(STEPS)]
    assert logits < 1e-4
    assert loss < 1e-5
    assert max(abs(a - b) for a, b in zip(after, theirs["trained"], strict=True)) < 1e-3
    assert after[0] < theirs["loss"] - 0.1  # there was something to agree about


@pytest.mark.parametrize("name", LEARNING)
def test_losses_buffers_and_rates(both, name):
    """What an attention asks of a training loop is the same in fairseq's as in ours."""
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


def test_scaled_gradients_are_divided_by_their_scale_once_and_bfloat16_is_used(both):
    """In fairseq's own step they are divided twice."""
    losses = [both[name][1]["losses"] for name in SCALED]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert both["bfloat16"][1]["losses"] != both["lm"][1]["losses"]


TIED = "--arch transformer_lm_gpt --share-decoder-input-output-embed"
LEARNED = ("backbone.positions=learned", "backbone.max_length=128")
LEARNED += ("backbone.scale_embedding=false", "backbone.activation=gelu_tanh")
STOCK = {("lm",): (TIED, ()), ("lm", "learned"): (TIED, LEARNED)}
STOCK |= {("mlm",): ("--arch roberta_base", ()), ("sum",): ("--arch transformer", ())}
"""fairseq's own networks with its own attention, and what ours is to be like."""


def test_fairseqs_own_networks(tmp_path):
    """Our weights open in them, and theirs, as fairseq drew them, in ours."""
    ours = {key: Ours.make(key[0], "vanilla", *overrides) for key, (_, overrides) in STOCK.items()}
    cases = []
    for key, cell in ours.items():
        arguments = cell.arguments(tmp_path / key[0])
        place = arguments.index("--arch")
        arguments[place : place + 2] = STOCK[key][0].split()
        own = [at for at, word in enumerate(arguments) if re.fullmatch("--.*attention(-options)?", word)]
        for place in reversed(own):
            del arguments[place : place + 2]
        case = {"arguments": arguments, "batches": cell.batches}
        cases += [case | {"weights": fairseq_weights(cell.backbone)}, case]
    answers = ask_fairseq(cases, tmp_path)
    for cell, given, drawn in zip(ours.values(), answers[::2], answers[1::2], strict=True):
        assert (cell.logits() - given["logits"])[cell.real()].abs().max() < 1e-4
        load_weights(cell.backbone, drawn["weights"])
        assert (cell.logits() - drawn["logits"])[cell.real()].abs().max() < 1e-4
