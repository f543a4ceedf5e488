"""Needles: the texts, how answers are scored by depth and length, and what a short training teaches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cab import build_backbone
from tasks.corpus.facts import THINGS
from tasks.needle.task import FIRST_FACT, FIRST_NAME, FIRST_THING, VOCABULARY, Needle
from tests.helpers.in_order import in_order


def small(**options: Any) -> Needle:
    sizes = {"length": 32, "num_needles": 4, "depths": 4, "examples": 64, "test_examples": 32}
    task = Needle(dataset="synthetic", **{**sizes, **options})
    task.check()
    task.setup(None)
    return task


class Reader(nn.Module):
    """Looks up the facts whose depth [B, K] and text's length ``sees`` allows, and answers all else with a name."""

    def __init__(self, num_needles: int, sees: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.num_needles, self.sees = num_needles, sees

    def forward(self, tokens: Tensor) -> Tensor:
        hay = tokens.shape[1] + 1 - 2 * self.num_needles
        facts = tokens[:, :hay] - FIRST_FACT
        told = torch.where(facts < 0, -1, facts // len(THINGS))
        place = (told[:, None] == tokens[:, hay::2, None] - FIRST_NAME).int().argmax(dim=-1)
        thing = FIRST_THING + facts.gather(1, place) % len(THINGS)
        answers = torch.where(self.sees(place / hay, tokens.shape[1] + 1), thing, FIRST_NAME)
        logits = torch.zeros(*tokens.shape, VOCABULARY)
        logits[:, hay::2] = F.one_hot(answers, VOCABULARY).float()
        return logits


def test_scores_are_by_depth_and_length() -> None:
    """One who sees the second half of a text alone, and of the longest nothing."""
    task = small()
    scores = task.evaluate(Reader(4, lambda depth, length: (depth >= 0.5) & (length < 128)), in_order)
    assert set(scores) == {metric.name for metric in task.metrics}
    assert [scores[f"accuracy_32_depth_{at}"] for at in (12, 37, 62, 87)] == [0.0, 0.0, 1.0, 1.0]
    assert [scores[f"accuracy_64_depth_{at}"] for at in (12, 37, 62, 87)] == [0.0, 0.0, 1.0, 1.0]
    assert scores["accuracy"] == scores["accuracy_32"] == pytest.approx(0.5, abs=0.1)
    assert scores["accuracy_128"] == 0.0
    primary = [metric.name for metric in task.metrics if metric.primary]
    lengths = [metric.at_length for metric in task.metrics if metric.at_length]
    assert (primary, lengths) == (["accuracy"], [32, 64, 128])
    assert 0.25 < task.baselines()["most_frequent_in_context"]["accuracy"] < 0.45  # of 4 things the commonest has 1.4


def test_the_loss_is_of_the_answers_alone() -> None:
    task = small()
    batch = task.splits["train"].__getitems__([0, 1])
    all_right = Reader(4, lambda depth, _: depth >= 0)
    assert task.logits(all_right, batch).argmax(-1).equal(batch.answers)
    assert task.loss(all_right, batch).item() == pytest.approx(math.log(math.e + VOCABULARY - 1) - 1)


def test_a_length_that_is_not_possible_leaves_the_others() -> None:
    task = small()
    torch.manual_seed(0)
    sizes = {"embed_dim": 16, "num_heads": 2, "ffn_dim": 16, "num_layers": 1}
    backbone = build_backbone("gpt2", pattern="CS", positions="learned", max_length=70, vocab_size=VOCABULARY, **sizes)
    with torch.no_grad():
        scores = task.evaluate(backbone.eval(), in_order)
    assert math.isnan(scores["accuracy_128"])
    assert math.isnan(scores["accuracy_128_depth_12"])
    assert 0.0 <= scores["accuracy_64"] <= 1.0
