"""Sentence pairs in the words of MLM's generated pages: the first sentence states facts, the second lists names.

In ``Kept annalamp boriscoin ...`` and ``Listed clara boris ...``, the label says whether the listed names are those of
the facts or the other names. All names and things are equally frequent in both classes, so the label follows only from
which name occurs in the 256 possible facts. A network pretrained on the lists of pages has learned this; one with fresh
weights must learn it first.
"""

from __future__ import annotations

import random

from tasks.corpus.synthetic import NAMES, THINGS
from tasks.glue.tables import Examples

CLASSES = ("others", "same")
NUM_FACTS = len(NAMES) // 2
"""Number of facts in the first sentence, and of names in the second."""
COUNTS = {"train": 8192, "dev": 512}
VERSION = 1


def generate_pairs(part: str) -> Examples:
    """Generate the pairs of a part, deterministically; the classes alternate."""
    rng = random.Random(f"pairs {VERSION} {part}")
    labels = [number % 2 for number in range(COUNTS[part])]
    return Examples([_pair(rng, is_same=bool(label)) for label in labels], [float(label) for label in labels])


def _pair(rng: random.Random, *, is_same: bool) -> tuple[str, str]:
    names = rng.sample(NAMES, len(NAMES))
    stated, others = names[:NUM_FACTS], names[NUM_FACTS:]
    facts = " ".join(name + rng.choice(THINGS) for name in stated)
    listed = rng.sample(stated, NUM_FACTS) if is_same else others
    return f"Kept {facts}", f"Listed {' '.join(listed)}"
