"""The protocol of the probes: how a question is put in each pattern, its scores, and what a network of it can learn."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cab import Backbone, Pattern
from cab.registry.registries import TASKS
from tasks.probe.batches import IGNORE_INDEX, query_logits
from tasks.probe.task import Probe, horizon
from tests.helpers.backbones.records import RECORDS
from tests.helpers.tasks.records import in_order, ready

SMALL: dict[str, dict[str, Any]] = {"noisy": {"noise": 0.5}, "mad_noisy": {"noise": 0.4, "vocab_size": 32}}
SMALL |= {"mqar": {"vocab_size": 64, "pairs": 4}, "mad_memorization": {"vocab_size": 64}}


def small(dataset: str) -> Probe:
    return ready("probe", dataset=dataset, **{"vocab_size": 16, **SMALL.get(dataset, {})})


def network(task: Probe, pattern: str) -> Backbone:
    torch.manual_seed(0)
    return RECORDS["mixer"].build("mixer", pattern, positions="learned", **task.backbone_options("mixer"))


def logits(dataset: str, pattern: str, **changes: Tensor) -> Tensor:
    """Of four examples, with the given fields of them in place of their own."""
    task = small(dataset)
    return query_logits(network(task, pattern), task.splits["train"].__getitems__([0, 1, 2, 3])._replace(**changes))


@pytest.mark.parametrize("pattern", [str(pattern) for pattern in Pattern])
@pytest.mark.parametrize("dataset", ["recall", "noisy", "copying", "compression"])
def test_an_answer_depends_on_what_the_pattern_shows(dataset, pattern):
    """All of the context in each; of the questions all (NS), those before (CS), itself (NC, CC); in CC an answer."""
    batch = small(dataset).splits["train"].__getitems__([0, 1, 2, 3])
    usual = logits(dataset, pattern)
    assert usual.shape[:2] == batch.answers.shape
    for place in (0, batch.context.shape[1] - 1):
        context = batch.context.clone()
        context[:, place, 0] = 1 if place == 0 else 2
        assert not torch.allclose(usual, logits(dataset, pattern, context=context)), place
    if dataset == "compression":
        return
    middle = batch.queries.shape[1] // 2
    queries = batch.queries.clone()
    queries[:, middle, 0] = 1
    changed = (usual - logits(dataset, pattern, queries=queries)).abs().amax(dim=(0, 2)) > 1e-6
    seen = {"NS": range(16), "CS": range(middle, 16), "NC": [middle], "CC": [middle]}[pattern]
    assert changed.nonzero().flatten().tolist() == [place for place in range(len(changed)) if place in seen]
    answers = batch.answers.index_fill(1, torch.tensor([middle]), 1)
    changed = (usual - logits(dataset, pattern, answers=answers)).abs().amax(dim=(0, 2)) > 1e-6
    assert changed.nonzero().flatten().tolist() == ([middle + 1] if pattern == "CC" else [])


@torch.no_grad()
@pytest.mark.parametrize("dataset", TASKS.get("probe").datasets)
def test_scores_are_shares_of_answers_and_of_examples(dataset):
    task = small(dataset)
    net = network(task, "CS")
    scores, made = task.evaluate(net, in_order), task.splits["test"].batch
    is_asked = made.answers != IGNORE_INDEX
    right = query_logits(net, made).argmax(-1) == made.answers
    assert scores["accuracy"] == pytest.approx(right[is_asked].double().mean().item())
    assert scores["sequences"] == pytest.approx((right | ~is_asked).all(dim=1).double().mean().item())
    assert 0.0 <= task.baselines()["commonest"]["accuracy"] < 0.6


def test_the_commonest_value_told_is_no_filler():
    task = Probe(dataset="recall", vocab_size=4, pairs=4, distance=50, examples=10, test_examples=400)
    task.setup(None)
    found = task.baselines()["most_frequent_in_context"]["accuracy"]
    assert 0.45 < found < 0.6  # of 4 in 4 the commonest has 2.1 on average


def test_horizon():
    """Of sequences of other lengths it is theirs."""
    right = np.ones((10, 6))
    assert horizon(right.mean(axis=0)) == 6
    right[0, 2], right[:2, 4] = 0, 0
    assert horizon(right.mean(axis=0)) == 4
    task = Probe(dataset="parity", length=16, longer_length=32, examples=4, test_examples=64)
    task.setup(None)
    for split, length in (("validation", 16), ("test", 32)):
        answers = task.splits[split].batch.answers
        assert task._scores_of([task._counts(answers.clamp(min=0), answers)])["horizon"] == length
