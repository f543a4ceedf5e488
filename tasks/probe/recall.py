"""The questions of all four patterns: recall, noisy recall, copying, compression.

One place holds one fact: a key and its value are two symbols whose vectors are added, so that one look-up answers, and
no layer is spent on joining neighbours. Symbols have the numbers

    0 nothing, 1 a filler, 2 the question mark, then ``vocab_size`` values, then as many keys, then as many keys that
    are never asked for.

What a state must hold to answer all questions is ``pairs`` times log2(vocab_size) bits, and for a noiseless look-up by
content as many directions as there are pairs.
"""

from __future__ import annotations

import numpy as np

from tasks.probe.questions import Questions, questions

FILLER, QUESTION, VALUES = 1, 2, 3


def recall(
    rng: np.random.Generator, rows: int, *, vocab_size: int, pairs: int, distance: int, noise: float, num_queries: int
) -> Questions:
    """Facts in random order, fillers, then keys whose values are to be said.

    Args:
        vocab_size: values that there are, and keys.
        pairs: facts of one example, whose keys differ; values may repeat.
        distance: fillers between the facts and the questions.
        noise: share of the facts whose keys are never asked for, and are none of the others; they come on top of
            ``pairs``.
        num_queries: questions of an example; a key is asked for again only when there are more questions than pairs.
    """
    keys = VALUES + vocab_size
    told = rng.permuted(np.tile(np.arange(vocab_size), (rows, 1)), axis=1)[:, :pairs]
    values = rng.integers(vocab_size, size=(rows, pairs))
    facts = np.stack([keys + told, VALUES + values], axis=-1)
    if never := round(pairs * noise / (1.0 - noise)):
        noisy = np.stack(
            [
                keys + vocab_size + rng.integers(vocab_size, size=(rows, never)),
                VALUES + rng.integers(vocab_size, size=(rows, never)),
            ],
            axis=-1,
        )
        order = rng.permuted(np.tile(np.arange(pairs + never), (rows, 1)), axis=1)[..., None]
        facts = np.take_along_axis(np.concatenate([facts, noisy], axis=1), order, axis=1)
    rounds = -(-num_queries // pairs)
    chosen = rng.permuted(np.tile(np.arange(pairs), (rows * rounds, 1)), axis=1).reshape(rows, -1)[:, :num_queries]
    said = np.take_along_axis(told, chosen, axis=1)
    answers = VALUES + np.take_along_axis(values, chosen, axis=1)
    return questions(_far(facts, distance), np.stack([keys + said, np.full_like(said, QUESTION)], axis=-1), answers)


def copying(rng: np.random.Generator, rows: int, *, vocab_size: int, pairs: int, distance: int) -> Questions:
    """``pairs`` values, fillers, then as many question marks: the values in their order, told apart by place alone."""
    values = VALUES + rng.integers(vocab_size, size=(rows, pairs))
    return questions(_far(values[..., None], distance), np.full((rows, pairs), QUESTION), values)


def compression(rng: np.random.Generator, rows: int, *, vocab_size: int, pairs: int, distance: int) -> Questions:
    """``pairs`` values, fillers, and one place that must hold them all: MAD's compression in pattern CS."""
    values = VALUES + rng.integers(vocab_size, size=(rows, pairs))
    return questions(_far(values[..., None], distance), np.full((rows, 1), QUESTION), values)


def _far(context: np.ndarray, distance: int) -> np.ndarray:
    """``context`` [B, M, S] with ``distance`` fillers behind it."""
    rows, _, width = context.shape
    fillers = np.zeros((rows, distance, width), dtype=context.dtype)
    fillers[..., 0] = FILLER
    return np.concatenate([context, fillers], axis=1)
