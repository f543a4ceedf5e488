"""Vocabulary of generated books. Each word, and each name with a thing (``annalamp``), is one token."""

from __future__ import annotations

ALL_NAMES = (
    "anna", "boris", "clara", "david", "elena", "felix", "greta", "henry", "irina", "jonas", "karin", "louis",
    "maria", "niels", "olga", "peter", "quinn", "rosa", "simon", "tanja", "ulrich", "vera", "walter", "xenia",
    "yusuf", "zelda", "amir", "beate", "cyril", "doris", "emil", "frieda",
)  # fmt: skip
NAMES = ALL_NAMES[:16]
THINGS = (
    "lamp", "coin", "ring", "book", "knife", "harp", "letter", "mirror", "basket", "hammer", "flute",
    "candle", "rope", "drum", "vase", "clock",
)  # fmt: skip
CHAPTERS = 32
"""Chapters per book."""
