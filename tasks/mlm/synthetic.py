"""Pages whose masked words occur once more, far away: facts in random order, then answers in name order.

A page of 52 tokens states who keeps which thing, 16 facts of one token each (``annalamp``) in random order, and then
lists all names in alphabetical order with their things (``anna lamp``). Only things of the list are masked, learned and
scored. For 4 varying names, the list contains the fact instead of the name: these are ``near``, for which a window of
one token on either side suffices. The others are ``far``: their fact is 3 to 50 tokens before, and only the name, or
the position in the list, identifies it.

Best possible perplexities of the masked words: 16 without attention; 16^(3/4) = 8 with a window that shows the name
only; 1 with the whole page.
"""

from __future__ import annotations

import random

from tasks.corpus.synthetic import CHAPTERS, NAMES, THINGS

NEAR = 4

LEVELS = {"near": range(3), "far": range(17, 10_000)}
"""Distance in tokens from an answer to its fact."""


def generate_book(number: int) -> str:
    """Generate book ``number`` of :data:`CHAPTERS` pages, deterministically."""
    rng = random.Random(f"pages {number}")
    return "".join(_page(rng) for _ in range(CHAPTERS))


def _page(rng: random.Random) -> str:
    keeps = {name: rng.choice(THINGS) for name in rng.sample(NAMES, len(NAMES))}
    told_again = rng.sample(NAMES, NEAR)
    facts = " ".join(name + thing for name, thing in keeps.items())
    entries = (f"{name}{keeps[name] if name in told_again else ''} {keeps[name]}" for name in NAMES)
    return f"Kept {facts}\nListed {' '.join(entries)}\n"
