"""Pages whose masked words occur once more, far away: facts in random order, then answers in name order.

A page states one fact of one token (``annalamp``) per name, and lists all names with their things (``anna lamp``),
which are masked, learned and scored. docs/reference/tasks/mlm.md gives the best possible perplexities.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tasks.corpus.facts import ALL_NAMES, CHAPTERS, THINGS

NEAR = 0.25
"""Fraction of the names whose fact is repeated in the list."""

LEVELS = {"near": range(3), "far": range(17, 10_000)}
"""Distance in tokens from an answer to its fact."""


def generate_book(number: int, *, names: int = 16) -> str:
    """Generate book ``number`` of :data:`CHAPTERS` pages about ``names`` people, deterministically."""
    rng = random.Random(f"pages {number}")
    return "".join(_page(rng, sorted(ALL_NAMES[:names])) for _ in range(CHAPTERS))


def _page(rng: random.Random, names: Sequence[str]) -> str:
    keeps = {name: rng.choice(THINGS) for name in rng.sample(names, len(names))}
    told_again = rng.sample(names, round(NEAR * len(names)))
    facts = " ".join(name + thing for name, thing in keeps.items())
    entries = (f"{name}{keeps[name] if name in told_again else ''} {keeps[name]}" for name in names)
    return f"Kept {facts}\nListed {' '.join(entries)}\n"
