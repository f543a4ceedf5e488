"""Trivial baselines: scores reachable without a network."""

from __future__ import annotations

import math
import re
from collections import Counter

import numpy as np

from tasks.lra import listops
from tasks.lra.rows import Rows

FITTED = 10_000
"""Number of training pairs to which a threshold is fitted."""


def accuracy(guesses: np.ndarray, rows: Rows) -> float:
    """Return the percentage of correct labels of ``rows``."""
    return 100.0 * float((guesses == rows.labels.numpy()).mean())


def majority(train: Rows, test: Rows) -> float:
    """Predict the most frequent class of the training split."""
    return accuracy(np.full(len(test), np.bincount(train.labels.numpy()).argmax()), test)


def root_operator(train: Rows, test: Rows) -> float:
    """Predict the most frequent value of the training trees with the same first symbol."""
    return accuracy(_by_root(train, test), test)


def root_and_digits(train: Rows, test: Rows) -> float:
    """Apply the root's operator to the digits directly below it; without any, fall back to :func:`root_operator`."""
    guesses = _by_root(train, test)
    for row in range(len(test)):
        symbols = test.text(row)
        digits = listops.direct_digits(symbols)
        if digits:
            guesses[row] = listops.apply(int(symbols[0]), digits)
    return accuracy(guesses, test)


def _by_root(train: Rows, test: Rows) -> np.ndarray:
    learned, asked = (np.array([rows.text(row)[0] for row in range(len(rows))]) for rows in (train, test))
    counts = np.zeros((listops.NUM_SYMBOLS, 10), dtype=np.int64)
    np.add.at(counts, (learned, train.labels.numpy()), 1)
    return counts.argmax(axis=1)[asked]


def bag_of_words(train: Rows, test: Rows) -> float:
    """Classify by naive Bayes over the words of a text, which needs neither positions nor attention."""
    counts: tuple[Counter[bytes], Counter[bytes]] = Counter(), Counter()
    for row, label in enumerate(train.labels.numpy()):
        counts[label].update(_words(train, row))
    vocabulary = counts[0] | counts[1]
    totals = [sum(words.values()) + len(vocabulary) for words in counts]
    weight = {
        word: math.log((counts[1][word] + 1) / totals[1]) - math.log((counts[0][word] + 1) / totals[0])
        for word in vocabulary
    }
    share = train.labels.numpy().mean()
    prior = math.log(share / (1 - share)) if 0 < share < 1 else 0.0
    sums = [prior + sum(weight.get(word, 0.0) for word in _words(test, row)) for row in range(len(test))]
    return accuracy(np.array(sums) > 0, test)


def _words(rows: Rows, row: int) -> list[bytes]:
    return re.findall(rb"[a-z']+", rows.seen(row).tobytes().lower())


def byte_pairs(train: Rows, test: Rows) -> float:
    """Classify pairs by a threshold on the cosine similarity of their byte bigram counts."""
    learned, seen = _likeness(train, min(len(train), FITTED)), _likeness(test, len(test))
    labels = train.labels.numpy()[: len(learned)]
    order = np.argsort(learned)
    above = labels.sum() - np.concatenate([[0], labels[order].cumsum()])  # number of ones above each threshold
    below = np.arange(len(order) + 1) - (labels.sum() - above)
    best = int((above + below).argmax())
    threshold = learned[order[best]] if best < len(order) else np.inf
    return accuracy(seen >= threshold, test)


def _likeness(rows: Rows, count: int) -> np.ndarray:
    """Return the cosine similarity of the bigram counts of both texts."""
    similarity = np.empty(count)
    for row in range(count):
        vectors = []
        for number in range(2):
            text = rows.seen(row, number).astype(np.int64)
            vectors.append(np.bincount(256 * text[:-1] + text[1:], minlength=1 << 16).astype(np.float32))
        length = np.linalg.norm(vectors[0]) * np.linalg.norm(vectors[1])
        similarity[row] = vectors[0] @ vectors[1] / length if length else 0.0
    return similarity


def nearest_mean(train: Rows, test: Rows) -> float:
    """Predict the class with the nearest mean image."""
    labels, nothing = train.labels.numpy(), np.zeros(len(train.text(0)))
    groups = [np.flatnonzero(labels == label).tolist() for label in range(labels.max() + 1)]
    sums = [sum((train.text(row).astype(float) for row in rows), nothing) for rows in groups]
    centers = np.stack([total / max(1, len(rows)) for total, rows in zip(sums, groups, strict=True)])
    guesses = [((centers - test.text(row)) ** 2).sum(axis=1).argmin() for row in range(len(test))]
    return accuracy(np.array(guesses), test)
