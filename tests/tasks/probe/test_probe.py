"""The protocol of the probes: how a question is put in each pattern, its scores, and what a network of it can learn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cab import Backbone, Pattern, UserError, build_backbone
from cab.config.compose import compose
from cab.registry.registries import TASKS
from cab.runner.cell import Cell, runnable_cells
from tasks.probe.batches import IGNORE_INDEX, query_logits
from tasks.probe.task import Probe
from tests.helpers.in_order import in_order

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


FOUR = ("recall", "noisy", "copying", "compression")


def network(task: Probe, pattern: str, attention: str = "vanilla", **options: Any) -> Backbone:
    torch.manual_seed(0)
    sizes = {"embed_dim": 16, "num_heads": 2, "ffn_dim": 16, "positions": "learned"}
    return build_backbone(
        "mixer", attention=attention, pattern=pattern, **{**sizes, **task.backbone_options("mixer"), **options}
    )


def logits(dataset: str, pattern: str, **changes: Tensor) -> Tensor:
    """Of four examples, with the given fields of them in place of their own."""
    task = small(dataset)
    batch = task.splits["train"].__getitems__([0, 1, 2, 3])._replace(**changes)
    return query_logits(network(task, pattern).eval(), batch)


@pytest.mark.parametrize("pattern", [str(pattern) for pattern in Pattern])
@pytest.mark.parametrize("dataset", FOUR)
def test_an_answer_depends_on_what_the_pattern_shows(dataset: str, pattern: str) -> None:
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
    answers = batch.answers.clone()
    answers[:, middle] = 1
    changed = (usual - logits(dataset, pattern, answers=answers)).abs().amax(dim=(0, 2)) > 1e-6
    assert changed.nonzero().flatten().tolist() == ([middle + 1] if pattern == "CC" else [])


@pytest.mark.parametrize("dataset", TASKS.get("probe").datasets)
def test_scores_are_shares_of_answers_and_of_examples(dataset: str) -> None:
    task = small(dataset)
    net = network(task, "CS").eval()
    with torch.no_grad():
        scores = task.evaluate(net, in_order)
        task.validate(net, in_order)
    assert set(scores) == {metric.name for metric in task.metrics}
    made = task.splits["test"].batch
    with torch.no_grad():
        right = (query_logits(net, made).argmax(-1) == made.answers)[made.answers != IGNORE_INDEX]
    assert scores["accuracy"] == pytest.approx(right.double().mean().item())
    assert all("accuracy" in values for values in task.baselines().values())
    assert 0.0 <= task.baselines()["commonest"]["accuracy"] < 0.6


def test_the_commonest_answer_is_one_that_is_scored() -> None:
    task = Probe(dataset="mad_fuzzy", length=64, train_on="all", examples=100, test_examples=100)
    task.setup(None)
    assert 0.05 < task.baselines()["commonest"]["accuracy"] < 0.2  # one of 8 symbols, not the padding


def test_the_commonest_value_told_is_no_filler() -> None:
    task = Probe(dataset="recall", vocab_size=4, pairs=4, distance=50, examples=10, test_examples=400)
    task.setup(None)
    assert (
        0.45 < task.baselines()["most_frequent_in_context"]["accuracy"] < 0.6
    )  # of 4 in 4 the commonest has 2.1 on average


def test_a_probe_is_not_asked_in_a_pattern_that_it_has_not() -> None:
    cells = {(dataset, pattern) for task, dataset, _, pattern, _ in runnable_cells() if task == "probe"}
    assert {dataset for dataset, pattern in cells if pattern != "CS"} == set(FOUR)
    assert {dataset for dataset, pattern in cells if pattern == "CS"} == set(TASKS.get("probe").datasets)
    with pytest.raises(UserError, match="dataset 'mqar' of task 'probe' does not support pattern NC"):
        Cell.from_config(composed("mqar", "smoke", pattern="NC"))


def composed(dataset: str, preset: str, *overrides: str, pattern: str = "CS") -> dict[str, Any]:
    chosen = {"task": "probe", "dataset": dataset, "backbone": "mixer", "pattern": pattern, "attention": "vanilla"}
    return compose([*(f"{key}={value}" for key, value in {**chosen, "preset": preset}.items()), *overrides])


def test_the_network_keeps_to_its_pattern() -> None:
    for pattern in Pattern:
        net = build_backbone("mixer", pattern=pattern)
        assert {slot for _, slot in net.attention_layers()} == {pattern}
        symbols = torch.ones(1, 3, 1, dtype=torch.long)
        with pytest.raises(UserError, match="source"):
            net(symbols, None if pattern.is_cross else symbols)
    with pytest.raises(UserError, match="3 places are more than the 2 learned"):
        build_backbone("mixer", pattern="CS", positions="learned", max_length=2)(symbols)
    with pytest.raises(UserError, match="num_compressed_symbols"):
        build_backbone("mixer", pattern="CS").decode_compressed(symbols)


@pytest.mark.parametrize("pattern", ["CS", "CC"])
def test_a_short_convolution_looks_back_only(pattern: str) -> None:
    torch.manual_seed(0)
    net = build_backbone("mixer", attention="none", pattern=pattern, convolution=3, init_std=1.0).eval()
    symbols = torch.arange(1, 9).view(1, 8, 1)
    other = symbols.clone()
    other[0, 4] = 12
    source = symbols if pattern == "CC" else None
    changed = (net(symbols, source) - net(other, source)).abs().amax(dim=-1)[0] > 1e-6
    assert changed.nonzero().flatten().tolist() == [4, 5, 6]
