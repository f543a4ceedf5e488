"""Generators of the probes: what each tells and asks, against rules written anew; and the same bytes every time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cab import UserError
from tasks.probe import recall
from tasks.probe.batches import IGNORE_INDEX, ProbeBatch
from tasks.probe.task import Probe


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def answered(made: ProbeBatch) -> list[tuple[int, int, int]]:
    """(row, place, answer) of every question."""
    return [(r, p, int(made.answers[r, p])) for r, p in (made.answers != IGNORE_INDEX).nonzero().tolist()]


@pytest.mark.parametrize(("noise", "num_queries"), [(0.0, 8), (0.5, 8), (0.0, 20), (0.25, 3)])
def test_recall_asks_for_what_was_told_once(noise: float, num_queries: int) -> None:
    made = recall.recall(rng(), 50, vocab_size=10, pairs=8, distance=5, noise=noise, num_queries=num_queries)
    never = {0.0: 0, 0.5: 8, 0.25: 3}[noise]
    assert made.context.shape == (50, 8 + never + 5, 2)
    for row in range(50):
        facts = made.context[row].tolist()
        assert facts[-5:] == [[recall.FILLER, 0]] * 5
        told = dict(facts[:-5])
        asked_keys = [key for key, mark in made.queries[row].tolist() if mark == recall.QUESTION]
        assert len(asked_keys) == num_queries
        assert [told[key] for key in asked_keys] == made.answers[row].tolist()
        keys = [key for key, _ in facts[:-5]]
        usual = [key for key in keys if key < recall.VALUES + 20]
        assert len(usual) == len(set(usual)) == 8
        assert set(asked_keys) <= set(usual)
        assert all(recall.VALUES <= value < recall.VALUES + 10 for _, value in facts[:-5])
    if num_queries <= 8:
        assert all(len(set(row[:, 0].tolist())) == num_queries for row in made.queries)


def test_mqar_asks_for_every_key_once_and_soon() -> None:
    made = recall.mqar(rng(), 500, vocab_size=64, length=64, pairs=6)
    for row in range(500):
        keys, values = made.context[row, ::2, 0].tolist(), made.context[row, 1::2, 0].tolist()
        assert len(set(keys)) == len(set(values)) == 6
        assert all(2 <= key <= 32 < value <= 64 for key, value in zip(keys, values, strict=True))
        told = dict(zip(keys, values, strict=True))
        asked = {int(made.queries[row, p, 0]): a for r, p, a in answered(ProbeBatch(*(x[row : row + 1] for x in made)))}
        assert asked == told
    places = (made.answers != IGNORE_INDEX).double().mean(dim=0)
    assert (places[1::2] == 0).all()
    assert places[0] > 0.85
    assert places[0] > places[2] > places[10] > places[-2]


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
