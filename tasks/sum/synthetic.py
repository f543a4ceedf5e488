"""News whose summary combines facts of all documents: who keeps what, and what it is changed into.

Each word of a document is one token that encodes one fact: what each of twelve people keeps, for three the thing
(``annalamp``), for nine its color (``annared``); the thing of each of ten colors (``redlamp``); and the change of each
thing (``lampring``), on one cycle of twelve, because on a cycle of six, five steps forward would equal one back.

The summary states what each person keeps, in name order (``kept``), and then follows six of the things through five
changes (``changed``). docs/reference/tasks/sum.md explains what each of them requires.
"""

from __future__ import annotations

import random

from tasks.corpus.facts import NAMES, THINGS

COLORS = ("red", "green", "blue", "white", "black", "brown", "pink", "grey", "gold", "purple")
OBJECTS, KEPT, FOLLOWED = THINGS[:12], THINGS[:8], THINGS[:6]
PEOPLE = NAMES[:12]
DIRECT, CHANGES = 3, 5
SUMMARY_WORDS = 56
LEVELS = {
    "kept": slice(2, 25, 2),
    "changed_once": slice(26, 32),
    "changed_more": slice(32, 44),
    "changed": slice(44, 56),
}
"""Words per summary."""


def generate_pair(number: int) -> tuple[str, str]:
    """Generate documents and summary ``number``, deterministically."""
    rng = random.Random(f"pair {number}")
    of_color = {color: rng.choice(KEPT) for color in COLORS}
    circle = shuffled(OBJECTS, rng)
    becomes = dict(zip(circle, circle[1:] + circle[:1], strict=True))
    labels = {name: rng.choice(COLORS) for name in shuffled(PEOPLE, rng)}
    labels |= {name: rng.choice(KEPT) for name in shuffled(PEOPLE, rng)[:DIRECT]}
    documents = (
        ["Kept", *(name + what for name, what in labels.items())],
        ["Coloured", *(color + of_color[color] for color in shuffled(COLORS, rng))],
        ["Changed", *(thing + becomes[thing] for thing in shuffled(OBJECTS, rng))],
    )
    kept = [word for name in PEOPLE for word in (name, of_color.get(labels[name], labels[name]))]
    forms, changed = list(FOLLOWED), []
    for _ in range(CHANGES):
        forms = [becomes[form] for form in forms]
        changed += forms
    return " ||||| ".join(" ".join(words) for words in documents), " ".join(["Kept", *kept, "changed", *changed])


def shuffled(words: tuple[str, ...], rng: random.Random) -> list[str]:
    """Return the words in random order."""
    return rng.sample(words, len(words))
