"""Probes of MAD (Poli et al. 2024), as in ``mad/data/instances.py`` of athms/mad-lab, commit 6e7e4c9.

The distributions agree, the random numbers do not. MAD's sixth task, compression, is
:func:`tasks.probe.recall.compression`. Symbols are MAD's plus one, since 0 is empty. In training MAD predicts every
next token (``everything``), in the test only those that can be known.
"""

from __future__ import annotations

import random

import numpy as np

from tasks.probe.batches import IGNORE_INDEX, ProbeBatch, inline_queries

NOISE_SYMBOLS = 16
LONGEST_KEY = 3
"""Maximum number of symbols of a key or value in fuzzy recall."""
MAP_SEED = 12345
"""Seed of the map to memorize, which training and test share."""


def recall(
    rng: np.random.Generator, rows: int, *, vocab_size: int, length: int, noise: float, everything: bool
) -> ProbeBatch:
    """Generate key-value pairs with repeated keys; queries are the values of keys seen before.

    Keys are the lower half of the symbols, values the upper; a key keeps its value. The last key has been seen. With
    noise, a pair consists of two of :data:`NOISE_SYMBOLS` further symbols with that probability, except for one pair.
    """
    pairs = length // 2
    count = (vocab_size - (NOISE_SYMBOLS if noise else 0)) // 2
    row = np.arange(rows)
    keys = rng.integers(count, size=(rows, pairs))
    noisy = rng.random((rows, pairs)) < noise
    noisy[row, rng.integers(pairs - 1, size=rows)] = False
    noisy[:, -1] = False
    seen = np.zeros((rows, count), dtype=bool)
    seen_before = np.zeros((rows, pairs), dtype=bool)
    for i in range(pairs - 1):
        seen_before[:, i] = seen[row, keys[:, i]] & ~noisy[:, i]
        seen[row, keys[:, i]] |= ~noisy[:, i]
    keys[:, -1] = np.where(seen, rng.random(seen.shape), -1.0).argmax(axis=1)
    seen_before[:, -1] = True
    values = count + rng.integers(count, size=(rows, count))[row[:, None], keys]
    noises = 2 * count + rng.integers(NOISE_SYMBOLS, size=(rows, pairs, 2))
    tokens = np.where(noisy[..., None], noises, np.stack([keys, values], axis=-1)).reshape(rows, 2 * pairs)
    is_query = np.stack([np.zeros_like(seen_before), seen_before], axis=-1).reshape(rows, 2 * pairs)
    return _next_tokens(tokens, is_query, everything=everything)


def fuzzy(
    rng: np.random.Generator, rows: int, *, vocab_size: int, length: int, everything: bool, test: bool
) -> ProbeBatch:
    """Generate recall in which keys and values are one to :data:`LONGEST_KEY` different consecutive symbols.

    Keys of a test have the maximum length. One pair is planted and queried at the end; other repeated keys are queried
    too. Short sequences are left-padded with the last symbol. In MAD the planted pair may be missing; here it is not.
    """
    generator = random.Random(int(rng.integers(2**62)))
    tokens = np.full((rows, length + 1), vocab_size - 1)
    is_query = np.zeros((rows, length + 1), dtype=bool)
    for i in range(rows):
        row, queried = _fuzzy_row(generator, vocab_size, length, test=test)
        tokens[i, -len(row) :] = row
        is_query[i, -len(row) :] = queried
    return _next_tokens(tokens, is_query, everything=everything)


def _fuzzy_row(generator: random.Random, vocab_size: int, length: int, *, test: bool) -> tuple[list[int], list[bool]]:
    count = (vocab_size - 1) // 2

    def key() -> tuple[int, ...]:
        size = LONGEST_KEY if test else generator.randint(1, LONGEST_KEY)
        return tuple(generator.sample(range(count), size))

    def value() -> tuple[int, ...]:
        return tuple(generator.sample(range(count, vocab_size - 1), generator.randint(1, LONGEST_KEY)))

    last = key()
    values = {last: value()}
    size = len(last) + len(values[last])
    enough = length - size - 2 * LONGEST_KEY
    planted_at = generator.randrange(enough - 2 * LONGEST_KEY + 1)  # no earlier pair reaches the end
    tokens: list[int] = []
    is_query: list[bool] = []
    seen: set[tuple[int, ...]] = set()
    while len(tokens) < enough:
        chosen = last if len(tokens) >= planted_at and last not in seen else key()
        answer = values.setdefault(chosen, value())
        tokens += [*chosen, *answer]
        is_query += [False] * len(chosen) + [chosen in seen] * len(answer)
        seen.add(chosen)
    return [*tokens, *last, *values[last]], [*is_query, *([False] * len(last)), *([True] * len(values[last]))]


def selective_copying(rng: np.random.Generator, rows: int, *, vocab_size: int, length: int, pairs: int) -> ProbeBatch:
    """Generate ``pairs`` symbols in order among blanks, a mark, and as many blanks at which to repeat the symbols.

    Each blank precedes a randomly drawn symbol, never following the last one, as in MAD. Its two last symbols are the
    blank and the mark.
    """
    blank, mark = vocab_size - 2, vocab_size - 1
    blanks = length - 2 * pairs - 1
    symbols = rng.integers(blank, size=(rows, pairs))
    before = rng.integers(pairs, size=(rows, blanks))
    places = np.arange(pairs) + (before[:, None, :] <= np.arange(pairs)[:, None]).sum(axis=-1)
    tokens = np.full((rows, length), blank)
    np.put_along_axis(tokens, places, symbols, axis=1)
    tokens[:, pairs + blanks] = mark
    answers = np.full((rows, length), IGNORE_INDEX)
    answers[:, -pairs:] = symbols + 1
    return inline_queries(tokens + 1, answers)


def memorization(rng: np.random.Generator, rows: int, *, vocab_size: int, length: int) -> ProbeBatch:
    """Generate keys, each followed by a mark at which its value is predicted; the map is the same in all examples."""
    symbols = vocab_size - 2  # MAD reserves one symbol for the mark and another one for its map
    fixed = np.random.default_rng(MAP_SEED)
    half = symbols // 2
    keys, values = fixed.permutation(half), half + fixed.permutation(symbols - half)[:half]
    drawn = rng.integers(half, size=(rows, length // 2))
    tokens = np.stack([keys[drawn], np.full_like(drawn, vocab_size - 1)], axis=-1).reshape(rows, -1)
    answers = np.stack([np.full_like(drawn, IGNORE_INDEX), values[drawn] + 1], axis=-1).reshape(rows, -1)
    return inline_queries(tokens + 1, answers)


def _next_tokens(tokens: np.ndarray, is_query: np.ndarray, *, everything: bool) -> ProbeBatch:
    """Return the stream without its last token, and the next tokens where ``is_query``, or all with ``everything``."""
    answers = np.where(is_query | everything, tokens + 1, IGNORE_INDEX)
    return inline_queries(tokens[:, :-1] + 1, answers[:, 1:])
