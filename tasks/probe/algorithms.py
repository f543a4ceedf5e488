"""Algorithms that are learnt on short sequences and asked for on long ones: copy, reverse, addition.

The distributions are those of ``tensor2tensor/data_generators/algorithmic.py``, on which the Universal Transformer
(Dehghani et al. 2019) was tested: lengths uniform from 1 to the longest, ten symbols, the two numbers of an addition
with their last digits first. Here one sequence holds the input, a mark, and the output with its end, each symbol of
which is to be said after those before it.
"""

from __future__ import annotations

import numpy as np

from tasks.probe.questions import IGNORE_INDEX, NOTHING, ProbeBatch, stream

MARK, END, DIGITS = 1, 2, 3
PLUS = MARK
"""The mark stands between two summands too."""


def copy(rng: np.random.Generator, rows: int, *, vocab_size: int, length: int, reverse: bool = False) -> ProbeBatch:
    """The input once more, or from its end to its beginning."""
    made = []
    for size in rng.integers(1, length, size=rows, endpoint=True):
        symbols = DIGITS + rng.integers(vocab_size, size=size)
        made.append((symbols, symbols[::-1] if reverse else symbols))
    return _said(made, 2 * length + 1)


def addition(rng: np.random.Generator, rows: int, *, vocab_size: int, length: int) -> ProbeBatch:
    """The sum of two numbers in base ``vocab_size``, all three with their last digits first.

    The first summand has 1 to ``length // 2`` digits and the second 1 to what leaves ``length`` for both and the mark;
    neither has a leading zero.
    """
    made = []
    for first in rng.integers(1, length // 2, size=rows, endpoint=True):
        second = rng.integers(1, length - first - 1, endpoint=True)
        summands = [_number(rng, size, vocab_size) for size in (first, second)]
        total = sum(_value(digits, vocab_size) for digits in summands)
        made.append((np.concatenate([summands[0] + DIGITS, [PLUS], summands[1] + DIGITS]), _digits(total, vocab_size)))
    return _said(made, 2 * length + 1)


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
        digits.append(DIGITS + digit)
    return np.array(digits)


def _said(made: list[tuple[np.ndarray, np.ndarray]], places: int) -> ProbeBatch:
    """Each input, the mark and the output in ``places`` places, empty at the end; asked from the mark on."""
    tokens = np.full((len(made), places), NOTHING)
    answers = np.full((len(made), places), IGNORE_INDEX)
    for i, (read, said) in enumerate(made):
        tokens[i, : len(read) + 1 + len(said)] = np.concatenate([read, [MARK], said])
        answers[i, len(read) : len(read) + len(said) + 1] = np.concatenate([said, [END]])
    return stream(tokens, answers)
