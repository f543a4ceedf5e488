"""Alignments in TextGrid's long form, as the Montreal Forced Aligner writes them."""

from __future__ import annotations


def _tier(number: int, name: str, end: float, rows: list[tuple[str, object, object]]) -> str:
    intervals = "".join(
        f"        intervals [{i}]:\n            xmin = {start}\n            xmax = {stop}\n"
        f'            text = "{text}"\n'
        for i, (text, start, stop) in enumerate(rows, start=1)
    )
    return (
        f'    item [{number}]:\n        class = "IntervalTier"\n        name = "{name}"\n        xmin = 0\n'
        f"        xmax = {end}\n        intervals: size = {len(rows)}\n{intervals}"
    )


def grid(*phones: tuple[str, object, object], end: float | None = None) -> str:
    """Return an alignment with the tiers words and phones of ``end`` seconds; by default, up to the last phone."""
    stop = float(str(phones[-1][2])) if end is None else end
    return (
        f'File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0\nxmax = {stop}\ntiers? <exists>\nsize = 2\n'
        f"item []:\n{_tier(1, 'words', stop, [('hello', 0, stop)])}{_tier(2, 'phones', stop, list(phones))}"
    )
