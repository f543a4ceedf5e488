"""Associative recall with many queries: MQAR (Arora et al. 2024, "Zoology", section 4 and its data set's code)."""

from __future__ import annotations

import numpy as np

from tasks.probe.batches import IGNORE_INDEX, ProbeBatch, probe_batch

POWER = 0.01
"""Exponent of the distribution of query positions s after the pairs: p(s) ~ s^(POWER - 1)."""


def mqar(rng: np.random.Generator, rows: int, *, vocab_size: int, length: int, pairs: int) -> ProbeBatch:
    """Generate alternating keys and values, then every key again at random positions; predict its value there.

    As in ``zoology/data/multiquery_ar.py`` of HazyResearch/zoology, commit dbcb60d, without random symbols instead of
    fillers, which Figure 2 of the paper does not use. Keys are distinct, and so are values: they are the lower and the
    upper half of ``vocab_size`` numbers, the first of which, 0, is the filler. Here all numbers are greater by one.
    """
    half = vocab_size // 2
    keys = _distinct(rng, rows, half - 1, pairs) + 1
    values = _distinct(rng, rows, vocab_size - half, pairs) + half
    slots = (length - 2 * pairs) // 2
    law = (POWER - 1.0) * np.log(np.arange(1, slots + 1))
    places = 2 * np.argsort(-(law + rng.gumbel(size=(rows, slots))), axis=1)[:, :pairs]  # sampling without replacement
    queries = np.zeros((rows, length - 2 * pairs), dtype=np.int64)
    answers = np.full(queries.shape, IGNORE_INDEX)
    np.put_along_axis(queries, places, keys, axis=1)
    np.put_along_axis(answers, places, values + 1, axis=1)
    return probe_batch(np.stack([keys, values], axis=-1).reshape(rows, 2 * pairs) + 1, queries + 1, answers)


def _distinct(rng: np.random.Generator, rows: int, count: int, chosen: int) -> np.ndarray:
    """Return ``chosen`` distinct numbers below ``count`` per row."""
    return np.stack([rng.choice(count, size=chosen, replace=False) for _ in range(rows)])
