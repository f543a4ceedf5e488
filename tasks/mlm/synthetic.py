"""Pages whose hidden words stand once more, far away: facts in random order, then answers in the order of the names.

A page of 52 tokens tells who keeps which thing, 16 facts of one token each (``annalamp``) in random order, and then
lists all names in alphabetical order with their things (``anna lamp``). Only things of the list are hidden, learnt
and scored. For 4 of the names, which vary, the list says the fact in place of the name: these are ``near``, a window
of one token on either side is enough. The others are ``far``: their fact stands 3 to 50 tokens before, and only the
name, or the place in the list, says what to look for.

What bounded readers can reach, as perplexity of the hidden words: without attention 16; a window that shows the name
alone 16^(3/4) = 8; the whole page 1.
"""

from __future__ import annotations

import random

from tasks.corpus.synthetic import CHAPTERS, NAMES, THINGS

NEAR = 4

LEVELS = {"near": range(3), "far": range(17, 10_000)}
"""Tokens from an answer back to its fact."""


def generate_book(number: int) -> str:
    """Book ``number``, of :data:`CHAPTERS` pages; always the same."""
    rng = random.Random(f"pages {number}")
    return "".join(_page(rng) for _ in range(CHAPTERS))


def _page(rng: random.Random) -> str:
    keeps = {name: rng.choice(THINGS) for name in rng.sample(NAMES, len(NAMES))}
    told_again = rng.sample(NAMES, NEAR)
    facts = " ".join(name + thing for name, thing in keeps.items())
    entries = (f"{name}{keeps[name] if name in told_again else ''} {keeps[name]}" for name in NAMES)
    return f"Kept {facts}\nListed {' '.join(entries)}\n"
