"""ListOps: evaluate nested lists of digits under MIN, MAX, MED (the median) and SM (the sum modulo 10).

Long Range Arena's variant (Tay et al. 2021, section 2.2.1; Nangia and Bowman 2018): trees up to depth 10 whose text has
500 to 2,000 symbols. Symbols 0 to 9 are the digits, 10 to 13 the operators with their opening bracket, 14 is the
closing bracket.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cab import UserError
from tasks.files import SPLITS, read_lines
from tasks.lra.rows import Counts, Example, Source, Splits

OPERATORS = ("MIN", "MAX", "MED", "SM")
CLOSE = 10 + len(OPERATORS)
NUM_SYMBOLS = CLOSE + 1
SYMBOL_TEXTS = (*map(str, range(10)), *(f"[{name}" for name in OPERATORS), "]")
OPERATOR_SHARE = 0.25  # probability that a node above the last level is a list
FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
HEADER = "Source\tTarget"
_IDS = {word: symbol for symbol, word in enumerate(SYMBOL_TEXTS)}


def apply(operator: int, values: list[int]) -> int:
    """Apply an operator to its arguments; the mean of two middle values is truncated to an integer."""
    if operator == 12:
        ordered, half = sorted(values), len(values) // 2
        return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2
    return {10: min, 11: max}[operator](values) if operator < 12 else sum(values) % 10


@dataclass(frozen=True)
class Shape:
    """Distribution of trees: depth, arguments per operator, and ``min_length < symbols < max_length``."""

    max_depth: int = 10
    max_arguments: int = 10
    min_length: int = 500
    max_length: int = 2000


class _TooLongError(Exception):
    """Signals that a tree exceeds the maximum length."""


def trees(rng: np.random.Generator, shape: Shape) -> Iterator[Example | None]:
    """Generate trees indefinitely; None replaces a tree with an unwanted length.

    A node is an operator with probability 1/4, and never at the maximum depth; all choices are uniform.
    """
    draw = _uniforms(rng)
    while True:
        symbols = bytearray()
        try:
            value = _grow(draw, 1, shape, symbols)
        except _TooLongError:
            yield None
            continue
        fits = shape.min_length < len(symbols) < shape.max_length
        yield Example((bytes(symbols),), value) if fits else None


def _uniforms(rng: np.random.Generator) -> Iterator[float]:
    while True:
        yield from rng.random(1 << 14).tolist()


def _grow(draw: Iterator[float], depth: int, shape: Shape, symbols: bytearray) -> int:
    """Append a subtree and return its value."""
    if len(symbols) >= shape.max_length:
        raise _TooLongError
    if depth == shape.max_depth or next(draw) >= OPERATOR_SHARE:
        digit = int(10 * next(draw))
        symbols.append(digit)
        return digit
    operator = 10 + int(len(OPERATORS) * next(draw))
    count = 2 + int((shape.max_arguments - 1) * next(draw))
    symbols.append(operator)
    values = [_grow(draw, depth + 1, shape, symbols) for _ in range(count)]
    symbols.append(CLOSE)
    return apply(operator, values)


def generated_trees(shape: Shape, counts: Counts) -> Source:
    """Return distinct trees; the random numbers depend on the split only."""

    def read() -> Splits:
        seen: set[bytes] = set()
        for number in (2, 1, 0):  # so that the test split does not depend on the sizes of the others
            yield SPLITS[number], _distinct(np.random.default_rng(number), shape, counts[number], seen)

    return Source({"generator": "listops 1", **asdict(shape), "counts": counts}, read)


def _distinct(rng: np.random.Generator, shape: Shape, count: int, seen: set[bytes]) -> Iterator[Example]:
    last = len(seen) + count
    for tree in trees(rng, shape):
        if len(seen) == last:
            return
        if tree is not None and tree.texts[0] not in seen:
            seen.add(tree.texts[0])
            yield tree


def tree_files(folder: Path) -> Source:
    """Read the official files ``basic_{train,val,test}.tsv``: a header, then one tree and its value per line."""
    return Source.files("listops 1", {split: folder / name for split, name in FILES.items()}, read_trees)


def read_trees(path: Path) -> Iterator[Example]:
    """Read the trees of a file; UserError with file and line for an invalid tree or value."""
    number, lines = 1, read_lines(path)
    if next(lines, None) != (1, HEADER):
        raise UserError(f"{path}, line 1: expected the header Source, Target with a tab between them")
    for number, line in lines:
        source, _, target = line.partition("\t")
        if target not in _IDS or _IDS[target] > 9:
            raise UserError(f"{path}, line {number}: expected a tree, a tab and a digit, got '{line[-40:].strip()}'")
        words = source.replace("(", " ").replace(")", " ").split()
        if unknown := [word for word in words if word not in _IDS]:
            raise UserError(f"{path}, line {number}: '{unknown[0][:20]}' is not a digit, operator or bracket")
        symbols = bytes(_IDS[word] for word in words)
        opened = sum(map(symbols.count, range(10, CLOSE)))
        if not symbols or opened != symbols.count(CLOSE) or (opened and symbols[-1] != CLOSE):
            raise UserError(f"{path}, line {number}: unbalanced brackets; the line is truncated or damaged")
        yield Example((symbols,), int(target))
    if number == 1:
        raise UserError(f"{path} has no trees after its header")


def direct_digits(symbols: np.ndarray) -> list[int]:
    """Return the digits directly below the root, without those in sub-lists."""
    opens = (symbols >= 10) & (symbols < CLOSE)
    depth = np.cumsum(opens.astype(np.int64) - (symbols == CLOSE))
    return symbols[(depth == 1) & (symbols < 10)].tolist()
