"""Forced alignments: phones of a TextGrid file in Praat's long form, as written by the Montreal Forced Aligner."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import NamedTuple

from cab import UserError
from tasks.tts.phonemes import ALIGNED, SILENCES


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
    """Read the tier ``phones`` without leading and trailing silence.

    Raises:
        ValueError: with the file: no such tier, an unknown phone, times out of order, or silence only.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    tiers = list(_TIER.finditer(text))
    place = next((i for i, tier in enumerate(tiers) if tier["name"] == "phones"), None)
    if place is None:
        raise UserError(f"{path} has no tier 'phones': it is not an alignment in TextGrid's long form")
    end = tiers[place + 1].start() if place + 1 < len(tiers) else len(text)
    phones = []
    for interval in _INTERVAL.finditer(text, tiers[place].end(), end):
        name = interval["text"].strip() or "sil"
        if name not in ALIGNED:
            raise UserError(f"{path}: unknown phone '{name}'; ARPAbet with stress, sil, sp and spn are known")
        phones.append(Phone(name, float(interval["start"]), float(interval["end"])))
    for before, after in itertools.pairwise(phones):
        if not before.start <= before.end <= after.start + 1e-6:
            raise UserError(f"{path}: phone '{after.name}' at {after.start} s starts before the previous one ends")
    while phones and phones[0].name in SILENCES:
        phones.pop(0)
    while phones and phones[-1].name in SILENCES:
        phones.pop()
    if not phones:
        raise UserError(f"{path} contains only silence")
    return phones
