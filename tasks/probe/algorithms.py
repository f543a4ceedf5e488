"""Algorithms learned on short sequences and tested on long ones: copy, reverse, addition.

The distributions are those of ``tensor2tensor/data_generators/algorithmic.py`` (Dehghani et al. 2019): lengths uniform
from 1 to the maximum, ten symbols, and the digits of summands in reverse order. Here one sequence contains the input, a
mark, and the output with its end; each output symbol is predicted from those before it.
"""

from __future__ import annotations

import numpy as np

from tasks.probe.batches import EMPTY_SYMBOL, IGNORE_INDEX, ProbeBatch, inline_queries

MARK_SYMBOL, END_SYMBOL, DIGIT = 1, 2, 3
PLUS = MARK_SYMBOL
"""The mark also separates two summands."""


def copy(rng: np.random.Generator, rows: int, *, vocab_size: int, length: int, reverse: bool = False) -> ProbeBatch:
    """Repeat the input, or reverse it."""
    sizes = rng.integers(1, length, size=rows, endpoint=True)
    inputs = [DIGIT + rng.integers(vocab_size, size=size) for size in sizes]
    return _join([(symbols, symbols[::-1] if reverse else symbols) for symbols in inputs], 2 * length + 1)


def addition(rng: np.random.Generator, rows: int, *, vocab_size: int, length: int) -> ProbeBatch:
    """Add two numbers in base ``vocab_size``, all three with their digits in reverse order.

    The first summand has 1 to ``length // 2`` digits; the second has at least 1 and at most as many as fit ``length``
    with the mark. Neither has a leading zero.
    """
    pairs = []
    for first in rng.integers(1, length // 2, size=rows, endpoint=True):
        second = rng.integers(1, length - first - 1, endpoint=True)
        summands = [_number(rng, size, vocab_size) for size in (first, second)]
        total = sum(_value(digits, vocab_size) for digits in summands)
        pairs.append((np.concatenate([summands[0] + DIGIT, [PLUS], summands[1] + DIGIT]), _digits(total, vocab_size)))
    return _join(pairs, 2 * length + 1)


def _number(rng: np.random.Generator, size: int, base: int) -> np.ndarray:
    digits = rng.integers(base, size=size)
    digits[-1] = rng.integers(1, base)
    return digits


def _value(digits: np.ndarray, base: int) -> int:
    return sum(int(digit) * base**place for place, digit in enumerate(digits))


def _digits(value: int, base: int) -> np.ndarray:
    digits = []
    while value:
        value, digit = divmod(value, base)
        digits.append(DIGIT + digit)
    return np.array(digits)


def _join(pairs: list[tuple[np.ndarray, np.ndarray]], length: int) -> ProbeBatch:
    """Join input, mark and output in ``length`` positions, padded at the end; predictions start at the mark."""
    tokens = np.full((len(pairs), length), EMPTY_SYMBOL)
    answers = np.full((len(pairs), length), IGNORE_INDEX)
    for i, (source, target) in enumerate(pairs):
        tokens[i, : len(source) + 1 + len(target)] = np.concatenate([source, [MARK_SYMBOL], target])
        answers[i, len(source) : len(source) + len(target) + 1] = np.concatenate([target, [END_SYMBOL]])
    return inline_queries(tokens, answers)
