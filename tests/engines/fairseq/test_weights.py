"""Our networks and fairseq's with the same attention: same logits, same losses, same training, same decoding."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from backbones.generation import Limits, beam_search
from engines.fairseq.weights import fairseq_weights, load_weights
from tasks.corpus.tokens import END, PAD
from tests.helpers.fairseq.cells import STEPS, Ours, ask_fairseq

CELLS = {
    ("lm", "vanilla"): (),
    ("lm", "abc"): ("attention.num_landmarks=8",),
    ("lm", "local"): ("attention.window_size=16",),
    ("lm", "performer"): ("attention.num_features=16",),
    ("lm", "s4d"): (),
    ("mlm", "vanilla"): (),
    ("mlm", "abc"): ("attention.num_landmarks=8",),
    ("lm", "[gla,vanilla]"): (),
    ("sum", "vanilla"): (),
    ("sum", "abc"): ("attention.num_landmarks=8", "other_attention={CS: local, NS: linear}"),
    ("sum", "[vanilla,abc]"): ("backbone.embed_layer_norm=true",),
}
DECODED, MIN_LENGTH = 256, 4


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Each cell with fairseq's answers to it, all by one process of fairseq's."""
    folder = tmp_path_factory.mktemp("agreement")
    ours = {key: Ours.make(*key, *overrides) for key, overrides in CELLS.items()}
    texts = {key: summaries(cell) for key, cell in ours.items() if key[0] == "sum"}
    cases = [
        {
            "arguments": cell.arguments(folder / key[0]),
            "weights": fairseq_weights(cell.backbone),
            "batches": cell.batches,
            "decode": DECODED if key[0] == "lm" else 0,
            "search": MIN_LENGTH if key in texts else 0,
        }
        for key, cell in ours.items()
    ]
    answers = ask_fairseq(cases, folder)
    return {key: (ours[key], answer | texts.get(key, {})) for key, answer in zip(ours, answers, strict=True)}


def summaries(cell: Ours) -> dict[str, Any]:
    """Summaries of the first batch by beam search, with the end token made likely, so that beams end."""
    backbone, source = cell.backbone, cell.batches[0][0]
    backbone.output.weight.data[END] *= 6
    limits, texts = Limits(max_length=25, min_length=MIN_LENGTH, end=END), {}
    for num_beams in (1, 3):
        state = backbone.init_state(source, source == PAD)
        rows = beam_search(backbone, state, source.new_zeros(len(source), 1), limits, num_beams=num_beams).tolist()
        texts[f"ours_{num_beams}"] = [[*row[: row.index(END)], END] for row in rows]
    return texts


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
    trained = max(abs(a - b) for a, b in zip(after, theirs["trained"], strict=True))
    assert logits < 1e-4
    assert loss < 1e-5
    assert trained < 1e-3
    assert after[0] < theirs["loss"] - 0.1  # there was something to agree about


@pytest.mark.parametrize("attention", ["vanilla", "abc", "local", "performer", "s4d", "[gla,vanilla]"])
def test_decoding_through_the_incremental_state_is_that_of_the_whole_prefix(both, attention):
    """Also in beam search, which reorders the state."""
    _, theirs = both["lm", attention]
    assert theirs["step_tokens"].shape == (2, 1 + DECODED)
    assert theirs["step_tokens"].unique().numel() > 20
    assert torch.equal(theirs["step_tokens"], theirs["whole_tokens"])
    torch.testing.assert_close(theirs["step_logits"], theirs["whole_logits"], rtol=0, atol=1e-4)

    assert [len(row) for row in theirs["step_beams"]] == [3, 3]
    assert theirs["step_beams"] == theirs["whole_beams"]


@pytest.mark.parametrize("key", [key for key in CELLS if key[0] == "sum"], ids=" ".join)
def test_summaries_are_ours(both, key):
    """The best hypothesis of each beam search, which reads through the incremental state, or the prefix each time."""
    _, theirs = both[key]
    for num_beams in (1, 3):
        assert [row[0] for row in theirs[f"step_beams_{num_beams}"]] == theirs[f"ours_{num_beams}"]
        assert theirs[f"step_beams_{num_beams}"] == theirs[f"whole_beams_{num_beams}"]


TIED = "--arch transformer_lm_gpt --share-decoder-input-output-embed"
LEARNED = ("backbone.positions=learned", "backbone.max_length=128")
LEARNED += ("backbone.scale_embedding=false", "backbone.activation=gelu_tanh")
STOCK = {
    ("lm",): (TIED, ()),
    ("lm", "learned"): (TIED, LEARNED),
    ("mlm",): ("--arch roberta_base", ()),
    ("sum",): ("--arch transformer", ()),
}
"""fairseq's own networks with its own attention, and what ours is to be like."""


def test_fairseqs_own_networks(tmp_path):
    """Our weights open in them, and theirs, as fairseq drew them, in ours."""
    ours = {key: Ours.make(key[0], "vanilla", *overrides) for key, (_, overrides) in STOCK.items()}
    cases = []
    for key, cell in ours.items():
        arguments = cell.arguments(tmp_path / key[0])
        place = arguments.index("--arch")
        arguments[place : place + 2] = STOCK[key][0].split()
        for place in reversed(
            [at for at, word in enumerate(arguments) if re.fullmatch("--.*attention(-options)?", word)]
        ):
            del arguments[place : place + 2]
        case = {"arguments": arguments, "batches": cell.batches}
        cases += [case | {"weights": fairseq_weights(cell.backbone)}, case]
    answers = ask_fairseq(cases, tmp_path)
    for cell, given, drawn in zip(ours.values(), answers[::2], answers[1::2], strict=True):
        assert (cell.logits() - given["logits"])[cell.real()].abs().max() < 1e-4
        load_weights(cell.backbone, drawn["weights"])
        assert (cell.logits() - drawn["logits"])[cell.real()].abs().max() < 1e-4
