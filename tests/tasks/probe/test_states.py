"""State tracking: groups, their products in the data, the horizon, and predictions of theory as controls."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from cab import build_backbone
from tasks.probe import states
from tasks.probe.batches import IGNORE_INDEX
from tasks.probe.task import STATES, Probe
from tests.helpers.in_order import in_order

ORDERS = {"parity": 2, "modulo3": 3, "s3": 6, "s5": 120}


@pytest.mark.parametrize("group", STATES)
def test_groups(group: str) -> None:
    """Of the right order, with the identity first, inverses, and associative; S3 and S5 do not commute."""
    table = states.products(group)
    element = np.arange(ORDERS[group])
    assert table.shape == (len(element), len(element))
    assert (table[0] == element).all()
    assert (table[:, 0] == element).all()
    assert all((np.sort(row) == element).all() for row in table)
    assert (table[table[:, :, None], element] == table[element[:, None, None], table]).all()
    assert (table == table.T).all() == (group in states.CYCLIC)


def test_products_of_permutations() -> None:
    """(a b)(i) = a(b(i))."""
    elements = list(permutations(range(3)))
    for a, first in enumerate(elements):
        for b, second in enumerate(elements):
            assert elements[states.products("s3")[a, b]] == tuple(first[second[i]] for i in range(3))


def test_answers_are_the_products_so_far() -> None:
    batch = states.word_problem(np.random.default_rng(0), 200, group="s5", shortest=3, longest=9)
    symbols, table = batch.queries[..., 0], states.products("s5")
    sizes = (symbols > 0).sum(dim=1)
    assert set(sizes.tolist()) == set(range(3, 10))
    for row, answers, size in zip(symbols.tolist(), batch.answers.tolist(), sizes.tolist(), strict=True):
        state = 0
        for symbol, answer in zip(row[:size], answers[:size], strict=True):
            state = table[symbol - 1, state]
            assert answer == 1 + state
        assert set(answers[size:]) <= {IGNORE_INDEX}


def test_sequences_of_other_lengths_have_a_horizon() -> None:
    """`cab evaluate --split validation` reads sequences of 3 to ``length`` elements."""
    task = Probe(dataset="parity", length=16, longer_length=32, examples=4, test_examples=64)
    task.setup(None)
    for split, length in (("validation", 16), ("test", 32)):
        answers = task.splits[split].batch.answers
        assert task._scores_of([task._counts(answers.clamp(min=0), answers)])["horizon"] == length


def test_horizon() -> None:
    right = np.ones((10, 6))
    assert states.horizon(right.mean(axis=0)) == 6
    right[0, 2], right[:2, 4] = 0, 0
    assert states.horizon(right.mean(axis=0)) == 4
    right[:2, 0] = 0
    assert states.horizon(right.mean(axis=0)) == 0


def horizon(dataset: str, attention: Any, num_steps: int = 600) -> float:
    """Train one layer as preset mini does."""
    torch.manual_seed(0)
    task = Probe(dataset=dataset, length=32, longer_length=256, examples=64 * num_steps, test_examples=512)
    task.setup(None)
    sizes: dict[str, Any] = {"embed_dim": 32, "num_heads": 2, "num_layers": 1, "ffn_dim": 64, "init_std": 0.125}
    options = {**sizes, **task.backbone_options("mixer")}
    network = build_backbone("mixer", attention=attention, pattern="CS", **options)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=num_steps, pct_start=0.1)
    mean = 1.0
    for step in range(num_steps):
        loss = task.loss(network, task.splits["train"].__getitems__(list(range(64 * step, 64 * step + 64))))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        mean = 0.95 * mean + 0.05 * loss.item()
        if mean < 1e-3:  # of many batches: one can be easy
            break
    with torch.no_grad():
        return task.evaluate(network.eval(), in_order)["horizon"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attention", "tracks"),
    [
        ({"name": "deltanet", "negative_eigenvalues": True}, True),
        ({"name": "deltanet"}, False),
        ({"name": "gla"}, False),
        ({"name": "vanilla"}, False),
    ],
    ids=str,
)
def test_parity_needs_negative_eigenvalues(attention: dict[str, Any], tracks: bool) -> None:
    """What theory predicts for each attention: Grazzi et al. 2025, arXiv:2411.12537."""
    found = horizon("parity", attention)
    assert found > 60 if tracks else found < 32
