"""The words of generated books. Each is one token of a small tokenizer, a name with a thing (``annalamp``) too."""

from __future__ import annotations

NAMES = (
    "anna",
    "boris",
    "clara",
    "david",
    "elena",
    "felix",
    "greta",
    "henry",
    "irina",
    "jonas",
    "karin",
    "louis",
    "maria",
    "niels",
    "olga",
    "peter",
)
THINGS = (
    "lamp",
    "coin",
    "ring",
    "book",
    "knife",
    "harp",
    "letter",
    "mirror",
    "basket",
    "hammer",
    "flute",
    "candle",
    "rope",
    "drum",
    "vase",
    "clock",
)
CHAPTERS = 32
"""Of a book."""
