"""State tracking: the product of all elements of a finite group so far, at each position.

``parity`` and ``modulo3`` are the cyclic groups of 2 and 3 elements, ``s3`` and ``s5`` the permutations of 3 and 5.
These are the word problems of Merrill et al. 2024 and Grazzi et al. 2025 (arXiv:2411.12537), learned on short sequences
and tested on long ones.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np

from tasks.probe.batches import EMPTY_SYMBOL, IGNORE_INDEX, ProbeBatch, inline_queries

CYCLIC = {"parity": 2, "modulo3": 3}
PERMUTED = {"s3": 3, "s5": 5}
FEWEST_ELEMENTS = 3
"""Elements of the shortest sequence."""
HORIZON_ACCURACY = 0.9
"""Accuracy at each position up to the horizon."""


def products(group: str) -> np.ndarray:
    """Return the products a b of the elements 0, 1, ... of a group, of which 0 is the identity, [G, G]."""
    if group in CYCLIC:
        element = np.arange(CYCLIC[group])
        return (element[:, None] + element) % len(element)
    size = PERMUTED[group]
    elements = np.array(list(permutations(range(size))))
    place = size ** np.arange(size)[::-1]  # a permutation as a number: they are sorted
    return np.searchsorted(elements @ place, elements[:, elements] @ place)


def word_problem(rng: np.random.Generator, rows: int, *, group: str, shortest: int, longest: int) -> ProbeBatch:
    """Generate ``shortest`` to ``longest`` random elements x_1, x_2, ...; answers are x_t ... x_2 x_1 at each t."""
    table = products(group)
    elements = rng.integers(len(table), size=(rows, longest))
    state = np.zeros(rows, dtype=np.int64)
    states = np.stack([state := table[element, state] for element in elements.T], axis=1)
    beyond = np.arange(longest) >= rng.integers(shortest, longest, size=(rows, 1), endpoint=True)
    return inline_queries(np.where(beyond, EMPTY_SYMBOL, 1 + elements), np.where(beyond, IGNORE_INDEX, 1 + states))


def horizon(accuracy: np.ndarray) -> int:
    """Return the number of first positions at each of which the accuracy [N] is at least :data:`HORIZON_ACCURACY`."""
    return int((accuracy >= HORIZON_ACCURACY).cumprod().sum())
