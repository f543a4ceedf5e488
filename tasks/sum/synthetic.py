"""News from several places whose summary needs one sentence of each, wherever it stands."""

from __future__ import annotations

import random

PEOPLE = ["the mayor", "a teacher", "the bishop", "a sailor", "the judge", "a farmer", "the doctor", "a painter"]
DEEDS = ["opened", "sold", "repaired", "closed", "bought", "burned", "painted", "moved"]
THINGS = ["bridge", "school", "museum", "harbour", "factory", "library", "theatre", "station"]
CITIES = ["Oslo", "Lima", "Cairo", "Delhi", "Quito", "Dakar", "Hanoi", "Turin"]
TALK = [
    "The weather has been mild in {city} for weeks.",
    "Many people in {city} say that prices are too high.",
    "A street of {city} was empty on Monday.",
    "Nobody could remember so quiet a summer.",
    "The newspapers of {city} had little to tell.",
    "Visitors came from all parts of the country.",
]


def generate_pair(number: int, *, documents: int = 3, sentences: int = 5) -> tuple[str, str]:
    """Documents and summary ``number``, always the same.

    Each document has one sentence that officials confirmed, never the first; the summary says what it says, for
    each document in turn. All else is talk, and the first sentences, which make a good summary of real news, are
    of no use.
    """
    rng = random.Random(f"pair {number}")
    texts, summary = [], []
    for city in rng.sample(CITIES, documents):
        person, deed, thing = rng.choice(PEOPLE), rng.choice(DEEDS), rng.choice(THINGS)
        lines = [rng.choice(TALK).format(city=city) for _ in range(sentences - 1)]
        fact = f"Officials confirmed that {person} {deed} the {thing} in {city}."
        lines.insert(rng.randrange(1, sentences), fact)
        texts.append(" ".join(lines))
        summary.append(f"In {city}, {person} {deed} the {thing}.")
    return " ||||| ".join(texts), "– " + " ".join(summary)
