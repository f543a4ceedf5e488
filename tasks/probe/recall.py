"""Queries for all four patterns: recall, noisy recall, copying, compression; and Zoology's MQAR.

One position holds one fact: a key and its value are two symbols whose vectors are added, so that one lookup suffices.
Symbol ids are 0 empty, 1 a filler, 2 the question mark, then ``vocab_size`` values, then as many keys, then as many
keys that are never queried.
"""

from __future__ import annotations

import numpy as np

from tasks.probe.batches import IGNORE_INDEX, ProbeBatch, probe_batch

FILLER, QUESTION, VALUES = 1, 2, 3


def recall(
    rng: np.random.Generator, rows: int, *, vocab_size: int, pairs: int, distance: int, noise: float, num_queries: int
) -> ProbeBatch:
    """Generate facts in random order, fillers, then keys whose values are predicted.

    Args:
        vocab_size: number of values, and of keys.
        pairs: facts per example, with distinct keys; values may repeat.
        distance: number of fillers between the facts and the queries.
        noise: fraction of facts with additional keys that are never queried; these are added to ``pairs``.
        num_queries: queries per example; keys are repeated only if there are more queries than pairs.
    """
    keys = VALUES + vocab_size
    keys_in_context = rng.permuted(np.tile(np.arange(vocab_size), (rows, 1)), axis=1)[:, :pairs]
    values = rng.integers(vocab_size, size=(rows, pairs))
    facts = np.stack([keys + keys_in_context, VALUES + values], axis=-1)
    if never := round(pairs * noise / (1.0 - noise)):
        starts = keys + vocab_size, VALUES
        noisy = np.stack([start + rng.integers(vocab_size, size=(rows, never)) for start in starts], axis=-1)
        order = rng.permuted(np.tile(np.arange(pairs + never), (rows, 1)), axis=1)[..., None]
        facts = np.take_along_axis(np.concatenate([facts, noisy], axis=1), order, axis=1)
    rounds = -(-num_queries // pairs)
    chosen = rng.permuted(np.tile(np.arange(pairs), (rows * rounds, 1)), axis=1).reshape(rows, -1)[:, :num_queries]
    queried = np.take_along_axis(keys_in_context, chosen, axis=1)
    answers = VALUES + np.take_along_axis(values, chosen, axis=1)
    queries = np.stack([keys + queried, np.full_like(queried, QUESTION)], axis=-1)
    return probe_batch(_far(facts, distance), queries, answers)


def copying(rng: np.random.Generator, rows: int, *, vocab_size: int, pairs: int, distance: int) -> ProbeBatch:
    """Generate ``pairs`` values, fillers, then as many question marks: the values in order, identified by position."""
    values = VALUES + rng.integers(vocab_size, size=(rows, pairs))
    return probe_batch(_far(values[..., None], distance), np.full((rows, pairs), QUESTION), values)


def compression(rng: np.random.Generator, rows: int, *, vocab_size: int, pairs: int, distance: int) -> ProbeBatch:
    """Generate ``pairs`` values, fillers, and one position that must hold them all: MAD's compression in pattern CS."""
    values = VALUES + rng.integers(vocab_size, size=(rows, pairs))
    return probe_batch(_far(values[..., None], distance), np.full((rows, 1), QUESTION), values)


def _far(context: np.ndarray, distance: int) -> np.ndarray:
    """Append ``distance`` fillers to ``context`` [B, M, S]."""
    rows, _, width = context.shape
    fillers = np.zeros((rows, distance, width), dtype=context.dtype)
    fillers[..., 0] = FILLER
    return np.concatenate([context, fillers], axis=1)


POWER = 0.01
"""Exponent of the distribution of query positions s after the pairs: p(s) ~ s^(POWER - 1)."""


def mqar(rng: np.random.Generator, rows: int, *, vocab_size: int, length: int, pairs: int) -> ProbeBatch:
    """Generate alternating keys and values, then every key again at random positions; predict its value there.

    As in ``zoology/data/multiquery_ar.py`` of HazyResearch/zoology, commit dbcb60d, with fillers as in Figure 2 of the
    paper. Keys are distinct, and so are values: they are the lower and the upper half of ``vocab_size`` numbers, the
    first of which, 0, is the filler. Here all numbers are greater by one.
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
    return np.stack([rng.choice(count, size=chosen, replace=False) for _ in range(rows)])
