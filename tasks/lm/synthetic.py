"""Books with long-range questions: each answer is one token that occurs once, anywhere before.

A chapter states one fact of one token (``annalamp``) per name, in random order, and asks 48 questions with answers
(``anna lamp``), 12 of them after repeating the fact. docs/reference/tasks/lm.md gives the best possible perplexities.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tasks.corpus.facts import ALL_NAMES, CHAPTERS, THINGS

NEAR, OTHERS = 12, 36

LEVELS = {"near": range(5), "far": range(41, 10_000)}
"""Distance in tokens from an answer to its last occurrence."""


def generate_book(number: int, *, names: int = 16) -> str:
    """Generate book ``number`` about ``names`` people, deterministically."""
    rng = random.Random(f"book {number}")
    return "".join(_chapter(rng, ALL_NAMES[:names]) for _ in range(CHAPTERS))


def _chapter(rng: random.Random, names: Sequence[str]) -> str:
    keeps = {name: rng.choice(THINGS) for name in rng.sample(names, len(names))}
    facts = " ".join(name + thing for name, thing in keeps.items())
    questions = []
    for told_again in rng.sample([True] * NEAR + [False] * OTHERS, NEAR + OTHERS):
        name = rng.choice(names)
        fact = f"{name}{keeps[name]} " if told_again else ""
        questions.append(f"{fact}{name} {keeps[name]}")
    return f"Kept {facts}\nAsked {' '.join(questions)}\n"
