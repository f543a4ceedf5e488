"""News whose summary needs every document, one fact at a time: what is kept, by whom, and what it is changed into.

Each word of a document is one token that says one thing of another. The first document tells of sixteen people what
they keep (``annalamp``), or only its colour (``annared``), in random order; the second says what has each colour
(``redlamp``); the third into what each thing is changed (``lampring``).

The summary tells first what each of the people keeps, in the order of their names:

* ``direct``, 4 words: the thing is in the fact itself. One look-up in the source (CC).
* ``colour``, 12 words: the fact has the colour only, one of two, three or four. The decoder, of one layer, reads the
  source once, so the encoder must have joined the two facts (NS). With two colours the joining is found first.

and then follows eight things through three changes, all eight once before any of them again:

* ``change``, 24 words: the next form of what was said eight words before. That word must be found in the summary
  itself (CS), then its change in the source (CC). The encoder can join two changes, not three.

What bounded readers can reach: without a look at the source every thing is as likely as any other, 1 in 8, and the
summary of other documents is as good an answer; without an encoder, or with a window of a few words of it, the twelve
colours are guesses among the things that have one; without the summary's own words, or with a window of fewer than
eight of them, the last of the three changes is a guess, and of the second what the encoder does not join.
"""

from __future__ import annotations

import random

from tasks.corpus.synthetic import NAMES, THINGS

COLOURS = ("red", "green", "blue", "white")
OBJECTS = THINGS[:8]
BY_COLOUR, COLOURED, CHANGES = 12, 8, 3
SUMMARY_WORDS = 42
LEVELS = {"kept": slice(1, 17), "changed_once": slice(18, 26), "changed_twice": slice(26, 34), "changed": slice(34, 42)}
"""Words of a summary."""


def generate_pair(number: int) -> tuple[str, str]:
    """Documents and summary ``number``, always the same."""
    rng = random.Random(f"pair {number}")
    colours = shuffled(COLOURS, rng)[: rng.randint(2, len(COLOURS))]
    of_colour = {colour: rng.choice(OBJECTS) for colour in colours}
    circle = shuffled(OBJECTS, rng)
    becomes = dict(zip(circle, circle[1:] + circle[:1], strict=True))
    by_colour = shuffled(NAMES, rng)[:BY_COLOUR]
    told = {name: rng.choice(colours if name in by_colour else OBJECTS) for name in shuffled(NAMES, rng)}
    documents = (
        ["Kept", *(name + what for name, what in told.items())],
        ["Coloured", *(colour + of_colour[colour] for colour in (COLOURED * colours)[:COLOURED])],
        ["Changed", *(thing + becomes[thing] for thing in shuffled(OBJECTS, rng))],
    )
    kept = [of_colour.get(told[name], told[name]) for name in NAMES]
    forms, said = list(OBJECTS), []
    for _ in range(CHANGES):
        forms = [becomes[form] for form in forms]
        said += forms
    return " ||||| ".join(" ".join(words) for words in documents), " ".join(["Kept", *kept, "changed", *said])


def shuffled(words: tuple[str, ...], rng: random.Random) -> list[str]:
    """The words in random order."""
    return rng.sample(words, len(words))
