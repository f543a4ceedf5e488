"""Books that can only be predicted well with a long memory: what is said of a person early comes back much later."""

from __future__ import annotations

import random

NAMES = ["Anna", "Boris", "Clara", "David", "Elena", "Felix", "Greta", "Henry", "Irina", "Jonas", "Karin", "Louis"]
THINGS = ["lamp", "coin", "ring", "book", "knife", "violin", "letter", "mirror", "basket", "hammer", "flute", "candle"]
PLACES = ["garden", "cellar", "tower", "kitchen", "harbour", "forest", "chapel", "market", "attic", "stable", "bridge"]
COLOURS = ["red", "green", "blue", "black", "white", "golden", "silver", "brown"]
WEATHER = ["The rain fell on the roofs", "A cold wind came from the sea", "The sun stood above the hills"]
DOINGS = ["walked slowly through the streets", "sat by the fire and said nothing", "looked out for a ship"]


def generate_book(number: int, *, chapters: int = 6, lines: int = 60) -> str:
    """Book ``number``, always the same.

    Each chapter begins by saying who keeps which thing where, goes on with lines that tell nothing of it, and
    asks again and again, in the same words with the answers after them. A reader who remembers the beginning of
    the chapter knows every answer; one who sees a few lines can only guess among a dozen.
    """
    rng = random.Random(f"book {number}")
    text = [f"Book {number}", ""]
    for chapter in range(1, chapters + 1):
        people = rng.sample(NAMES, 6)
        keeps = {name: (rng.choice(COLOURS), rng.choice(THINGS), rng.choice(PLACES)) for name in people}
        text += [f"Chapter {chapter}", ""]
        text += [f"{name} keeps a {colour} {thing} in the {place}." for name, (colour, thing, place) in keeps.items()]
        for _ in range(lines):
            name = rng.choice(people)
            colour, thing, place = keeps[name]
            told = rng.random()
            if told < 0.35:
                text.append(f"What does {name} keep? It is a {colour} {thing}, and it lies in the {place}.")
            elif told < 0.7:
                text.append(f"{rng.choice(WEATHER)}, and {name} {rng.choice(DOINGS)}.")
            else:
                other = rng.choice([person for person in people if person != name])
                text.append(f"Then {name} met {other} and asked for the {keeps[other][1]} of {other}.")
        text.append("")
    return "\n".join(text) + "\n"
