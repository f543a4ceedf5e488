"""Generators of the probes: what each tells and asks, against rules written anew; and the same bytes every time."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from cab import UserError
from cab.registry.registries import TASKS
from tasks.probe import algorithms, mad, recall
from tasks.probe.batches import IGNORE_INDEX, ProbeBatch
from tasks.probe.task import Probe
from tests.cab.cli.command import ROOT


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


def test_copying_and_compression_ask_for_all_in_order() -> None:
    for make, places in ((recall.copying, 6), (recall.compression, 1)):
        made = make(rng(), 20, vocab_size=5, pairs=6, distance=2)
        assert torch.equal(made.context[:, :6, 0], made.answers)
        assert (made.context[:, 6:] == recall.FILLER).all()
        assert made.queries.shape == (20, places, 1)


@pytest.mark.parametrize(("vocab_size", "noise"), [(16, 0.0), (32, 0.4), (36, 0.8)])
def test_mads_recall_asks_for_keys_seen_before(vocab_size: int, noise: float) -> None:
    made = mad.recall(rng(), 200, vocab_size=vocab_size, length=40, noise=noise, everything=False)
    every = mad.recall(rng(), 200, vocab_size=vocab_size, length=40, noise=noise, everything=True)
    count = (vocab_size - (16 if noise else 0)) // 2
    noises = 0
    for row in range(200):
        tokens = [*(made.queries[row, :, 0] - 1).tolist(), int(made.answers[row, -1]) - 1]
        assert len(tokens) == 40
        told: dict[int, int] = {}
        for place in range(0, 40, 2):
            key, value = tokens[place : place + 2]
            answer = int(made.answers[row, place])
            if key >= 2 * count:
                noises += 1
                assert value >= 2 * count
                assert answer == IGNORE_INDEX
                continue
            assert key < count <= value < 2 * count
            assert (answer == value + 1) == (key in told)
            assert told.setdefault(key, value) == value
        assert (made.answers[row, 1::2] == IGNORE_INDEX).all()
        assert made.answers[row, -1] != IGNORE_INDEX
        assert (every.answers[row] - 1).tolist() == tokens[1:]
    assert noises / (200 * 20) == pytest.approx(noise * 18 / 20, abs=0.02)


def test_mads_fuzzy_recall_plants_its_last_pair() -> None:
    for test in (True, False):
        made = mad.fuzzy(rng(), 100, vocab_size=16, length=64, everything=False, test=test)
        for row in range(100):
            tokens = (made.queries[row, :, 0] - 1).tolist()
            answers = made.answers[row].tolist()
            last = 63 - answers[::-1].index(IGNORE_INDEX)
            said = [answer - 1 for answer in answers[last + 1 :]]
            assert all(7 <= value < 15 for value in said)
            end = 64 - len(said) + 1
            key: list[int] = []
            while tokens[end - 1 - len(key)] < 7 and len(key) < mad.LONGEST:
                key.insert(0, tokens[end - 1 - len(key)])
            assert len(key) == len(set(key)) == (mad.LONGEST if test else len(key))
            whole = [*key, *said]
            assert any(tokens[i : i + len(whole)] == whole for i in range(end - len(key))), (tokens, whole)
            padded = tokens.count(15)
            assert tokens[:padded] == [15] * padded


def test_mads_selective_copying_has_no_blank_behind_the_last_symbol() -> None:
    made = mad.selective_copying(rng(), 100, vocab_size=16, length=40, pairs=6)
    for row in range(100):
        tokens = (made.queries[row, :, 0] - 1).tolist()
        told = [token for token in tokens[:33] if token < 14]
        assert tokens[33:] == [15] + [14] * 6
        assert tokens[32] < 14
        assert (made.answers[row, -6:] - 1).tolist() == told
        assert (made.answers[row, :-6] == IGNORE_INDEX).all()
    blanks_first = (made.queries[:, 0, 0] - 1 == 14).double().mean().item()
    assert blanks_first == pytest.approx(1 - (5 / 6) ** 27, abs=0.03)


def test_mads_memorization_has_one_map() -> None:
    made = [mad.memorization(np.random.default_rng(seed), 50, vocab_size=64, length=32) for seed in (1, 2)]
    fixed: dict[int, int] = {}
    for part in made:
        for row, place, answer in answered(part):
            assert part.queries[row, place, 0] == 64
            assert fixed.setdefault(int(part.queries[row, place - 1, 0]), answer) == answer
    assert len(fixed) == len(set(fixed.values())) == 31


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


@pytest.mark.parametrize("reverse", [False, True])
def test_copy_and_reverse(reverse: bool) -> None:
    made = algorithms.copy(rng(), 300, vocab_size=10, length=12, reverse=reverse)
    lengths = []
    for row in range(300):
        tokens = [token for token in made.queries[row, :, 0].tolist() if token]
        size = tokens.index(algorithms.MARK)
        symbols = tokens[:size]
        said = [*(symbols[::-1] if reverse else symbols), algorithms.END]
        assert made.answers[row, size : 2 * size + 1].tolist() == said
        assert tokens[size + 1 :] == said[:-1]
        assert (made.answers[row] != IGNORE_INDEX).sum() == size + 1
        lengths.append(size)
    assert min(lengths) == 1
    assert max(lengths) == 12


def test_addition_is_right_with_its_last_digit_first() -> None:
    made = algorithms.addition(rng(), 300, vocab_size=10, length=20)

    def number(symbols: list[int]) -> int:
        return int("".join(str(symbol - algorithms.DIGITS) for symbol in reversed(symbols)))

    for row in range(300):
        tokens = [token for token in made.queries[row, :, 0].tolist() if token]
        plus = tokens.index(algorithms.PLUS)
        mark = tokens.index(algorithms.MARK, plus + 1)
        first, second, said = tokens[:plus], tokens[plus + 1 : mark], tokens[mark + 1 :]
        assert 1 <= len(first) <= 10
        assert len(first) + 1 + len(second) <= 20
        assert number(said) == number(first) + number(second)
        assert made.answers[row, mark : mark + len(said) + 1].tolist() == [*said, algorithms.END]


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


def test_two_processes_make_the_same_bytes() -> None:
    names = TASKS.get("probe").datasets
    code = "from tests.tasks.probe.test_batches import small\n"
    code += f"print([small(name).fingerprint() for name in {names!r}])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    here = [small(name).fingerprint() for name in names]
    assert done.stdout.strip() == str(here)
    assert all(prints["train"]["sha256"] != prints["test"]["sha256"] for prints in here)
    assert len({prints["test"]["sha256"] for prints in here}) == len(here)


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
        ({"dataset": "recall", "num_queries": 0}, "task.num_queries must be at least 1"),
        ({"dataset": "recall", "train_on": "some"}, "task.train_on must be all or answers"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        Probe(**options).check()
