"""News whose summary needs every document, one fact at a time: what is kept, by whom, and what it is changed into.

Each word of a document is one token that says one thing of another. The first document tells of twelve people what
they keep, in random order: of three the thing (``annalamp``), of nine its colour (``annared``); the second says what
has each of ten colours (``redlamp``), any thing as likely as another; the third into what each thing is changed
(``lampring``).

The summary tells first what each of the people keeps, by name, in the order of their names:

* ``kept``, 12 words. What is told of a person is found by the name; that pays from the first steps on. Where it is a
  colour, the encoder must have joined the two facts (NS): the decoder, of one layer, reads the source once (CC), and
  its four heads cannot read ten colours beside the one. (Without the names two things in a row would be in both
  summaries by chance: with 47% of these words right, ROUGE-2 was 78.)

and then follows six of twelve things through five changes, all six once before any of them again:

* ``change``, 30 words: the next form of what was said six words before. That word must be found in the summary itself
  (CS), then its change in the source (CC). The encoder can join a change with those before and after it, so three of
  them are found without the summary, and no more. (The twelve go round in one circle: with six, five changes forth
  were one back.)

What bounded readers can reach: without a look at the source every thing is as likely as any other, 1 in 8 or 12, and
the summary of other documents is as good an answer; without an encoder, or with a window of a few words of it, what is
kept by the other nine is a guess among the things that have a colour; without the summary's own words, or with a window
of fewer than six of them, the last two of the five changes are guesses, and of the two before them what the encoder
does not join.
"""

from __future__ import annotations

import random

from tasks.corpus.synthetic import NAMES, THINGS

COLOURS = ("red", "green", "blue", "white", "black", "brown", "pink", "grey", "gold", "purple")
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
"""Words of a summary."""


def generate_pair(number: int) -> tuple[str, str]:
    """Documents and summary ``number``, always the same."""
    rng = random.Random(f"pair {number}")
    of_colour = {colour: rng.choice(KEPT) for colour in COLOURS}
    circle = shuffled(OBJECTS, rng)
    becomes = dict(zip(circle, circle[1:] + circle[:1], strict=True))
    told = {name: rng.choice(COLOURS) for name in shuffled(PEOPLE, rng)}
    told |= {name: rng.choice(KEPT) for name in shuffled(PEOPLE, rng)[:DIRECT]}
    documents = (
        ["Kept", *(name + what for name, what in told.items())],
        ["Coloured", *(colour + of_colour[colour] for colour in shuffled(COLOURS, rng))],
        ["Changed", *(thing + becomes[thing] for thing in shuffled(OBJECTS, rng))],
    )
    kept = [word for name in PEOPLE for word in (name, of_colour.get(told[name], told[name]))]
    forms, said = list(FOLLOWED), []
    for _ in range(CHANGES):
        forms = [becomes[form] for form in forms]
        said += forms
    return " ||||| ".join(" ".join(words) for words in documents), " ".join(["Kept", *kept, "changed", *said])


def shuffled(words: tuple[str, ...], rng: random.Random) -> list[str]:
    """The words in random order."""
    return rng.sample(words, len(words))
