"""News whose summary combines facts of all documents: who keeps what, and what it is changed into.

Each word of a document is one token that encodes one fact. The first document states what each of twelve people keeps,
in random order: for three the thing (``annalamp``), for nine its color (``annared``). The second gives the thing of
each of ten colors (``redlamp``), uniformly drawn. The third gives the change of each thing (``lampring``).

The summary first states what each person keeps, in name order:

* ``kept``, 12 words. The entry of a person is found by the name, which pays off from the first steps on. If it is a
color, the encoder must have joined the two facts (NS): the one-layer decoder reads the source once (CC), and its four
heads cannot read ten colors at the same time. (Without the names, two consecutive things would agree between summaries
by chance: with 47% of these words right, ROUGE-2 was 78.)

It then follows six of twelve things through five changes, all six before the next change:

* ``change``, 30 words: the successor of the word six positions before. That word must be found in the summary itself
(CS), then its change in the source (CC). The encoder can join each change with its neighbors, so that three of the
changes can be found without the summary. (The twelve things form one cycle: on a cycle of six, five steps forward would
equal one back.)

Best possible results of restricted models: without the source, all things are equally likely, 1 in 8 or 12, and the
summary of other documents is as good. Without an encoder, or with a window of a few words in it, the things of the
other nine people are a guess among those with a color. Without the summary's own words, or with a window of fewer than
six of them, the last two of the five changes are guesses, and of the two before them those that the encoder does not
join.
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
