"""Alignments: their outer silence, their gaps, and every way in which they can be wrong or cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.tts.phonemes import Phone, read_phones
from tests.helpers.data.text_grid import grid
from tests.tasks.test_files_damaged import GOOD

PHONES = [Phone("HH", 0.1, 0.2), Phone("sp", 0.2, 0.3), Phone("AH0", 0.3, 0.5)]


@pytest.mark.parametrize(
    "content",
    [
        GOOD.encode(),
        GOOD.encode("utf-8-sig"),
        GOOD.encode("utf-16"),
        b"\xfe\xff" + GOOD.encode("utf-16-be"),
        GOOD.replace("\n", "\r\n").encode(),
        GOOD.replace("\n", "\r").encode(),
        GOOD.replace("    ", "\t").encode(),
        GOOD.replace("intervals [2]:", "intervals [2]").encode(),
        GOOD.rstrip("\n").encode(),
    ],
)
def test_alignments_lose_their_outer_silence_in_every_dialect(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.TextGrid").write_bytes(content)
    assert read_phones(tmp_path / "a.TextGrid") == (PHONES, 0.6)


def test_times_without_an_interval_are_silence(tmp_path: Path) -> None:
    """Some programs do not write intervals without a phone."""
    (tmp_path / "a.TextGrid").write_text(grid(("HH", 0.1, 0.2), ("AH0", 0.3, 0.5), end=0.6))
    assert [phone.name for phone in read_phones(tmp_path / "a.TextGrid")[0]] == ["HH", "sil", "AH0"]
