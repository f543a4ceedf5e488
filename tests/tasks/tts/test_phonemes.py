"""Alignments: their outer silence, their gaps, and every way in which they can be wrong or cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from cab import UserError
from tasks.tts.phonemes import Phone, read_phones
from tests.helpers.data.text_grid import grid

GOOD = grid(("sil", 0, 0.1), ("HH", 0.1, 0.2), ("sp", 0.2, 0.3), ("AH0", 0.3, 0.5), ("", 0.5, 0.6))
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


SHORT = '"ooTextFile"\n"TextGrid"\n0\n0.6\n<exists>\n1\n"IntervalTier"\n"phones"\n0\n0.6\n1\n0\n0.6\n"HH"\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "0 tiers 'phones'"),
        ("nothing", "0 tiers 'phones' in TextGrid's long form"),
        (SHORT, "0 tiers 'phones' in TextGrid's long form"),
        (GOOD + GOOD, "2 tiers 'phones'"),
        (GOOD[: len(GOOD) * 3 // 4], "line 20: the tier 'phones' has 2 intervals instead of 5, or others"),
        (GOOD.replace("size = 2\n", "size = 3\n"), "has 2 tiers, its header gives 3"),
        (GOOD.replace("size = 5", "size = 4"), "has 5 intervals instead of 4"),
        (GOOD.replace("size = 5", "size = 6"), "has 5 intervals instead of 6"),
        (GOOD.replace("size = 5", f"size = {'9' * 5000}"), "0 tiers 'phones'"),
        (GOOD.replace("intervals: size = 1\n", "intervals: size = 2\n"), "tier 'words' has 1 intervals instead of 2"),
        (GOOD.replace("intervals: size = 1\n", "intervals: size = 0\n"), "tier 'words' has 1 intervals instead of 0"),
        (
            GOOD + "        intervals [6]:\n            xmin = 0.6\n",
            "has 5 intervals instead of 5, or others than 1 to 5",
        ),
        (GOOD.replace("intervals [3]", "intervals [4]"), "has 5 intervals instead of 5, or others than 1 to 5"),
        (grid(("QQ", 0, 0.1)), "line 28: unknown phone 'QQ'"),
        (grid(("<pad>", 0, 0.1)), "unknown phone '<pad>'"),
        (grid(('""', 0, 0.1)), "unknown phone '\"\"'"),
        (grid(("HH", 0, 0.3), ("AH0", 0.2, 0.4)), r"line 29: phone 'AH0' from 0.2 to 0.4 s is not between 0.3 s"),
        (grid(("AH0", 0.2, 0.4), ("HH", 0, 0.2), end=0.4), "phone 'HH' from 0 to 0.2 s is not between 0.4 s"),
        (grid(("HH", 0.3, 0.1), end=0.4), "phone 'HH' from 0.3 to 0.1 s"),
        (grid(("HH", 0, 300), end=0.3), "from 0 to 300 s is not between 0 s, .* and 0.3 s, the end of the tier"),
        (grid(("HH", -1, 0.3)), "line 26: the time '-1' is not a number of seconds from 0"),
        (grid(("HH", 0, "nan"), end=0.3), "the time 'nan' is not a number"),
        (grid(("HH", 0, "inf"), end=0.3), "the time 'inf' is not a number"),
        (grid(("HH", 0, "1e400"), end=0.3), "the time '1e400' is not a number"),
        (grid(("HH", 0, "0,3"), end=0.3), "the time '0,3' is not a number"),
        (grid(("sil", 0, 0.3)), "contains only silence"),
        (GOOD.replace("HH", "H\0H"), "line 32: a NUL character"),
    ],
)
def test_bad_alignments_are_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.TextGrid").write_text(content)
    with pytest.raises(UserError, match=f"a.TextGrid.*{message}"):
        read_phones(tmp_path / "a.TextGrid")
