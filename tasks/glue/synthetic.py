"""Pairs in the words of MLM's generated pages: the first sentence tells facts, the second lists names.

``Kept annalamp boriscoin ...`` and ``Listed clara boris ...``: are these the names of whom it tells, or those of the
others? Every name and thing is as frequent in both kinds of pairs, so nothing tells but whose name is in which of 256
facts. A network that was trained to fill in the lists of pages has learnt that; fresh weights must first learn it.
"""

from __future__ import annotations

import random

from tasks.corpus.synthetic import NAMES, THINGS
from tasks.glue.tables import Examples

CLASSES = ("others", "same")
TOLD = len(NAMES) // 2
"""Facts of a first sentence, and names of a second one."""
COUNTS = {"train": 8192, "dev": 512}
VERSION = 1


def generate_pairs(part: str) -> Examples:
    """The pairs of a part, always the same; every other one lists the same names."""
    rng = random.Random(f"pairs {VERSION} {part}")
    labels = [number % 2 for number in range(COUNTS[part])]
    return Examples([_pair(rng, is_same=bool(label)) for label in labels], [float(label) for label in labels])


def _pair(rng: random.Random, *, is_same: bool) -> tuple[str, str]:
    names = rng.sample(NAMES, len(NAMES))
    told, others = names[:TOLD], names[TOLD:]
    facts = " ".join(name + rng.choice(THINGS) for name in told)
    listed = rng.sample(told, TOLD) if is_same else others
    return f"Kept {facts}", f"Listed {' '.join(listed)}"
