"""Tables of K and verdicts for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cab.files.disk import sanitize_text
from cab.files.text_table import text_table
from cab.scoring.statistics import ONE_SEED_LEGEND, ONE_SEED_MARK

if TYPE_CHECKING:
    from cab.records.record import Record
    from cab.suite.cells import CellResults
    from cab.suite.verdict import GainRow

LEGEND = "K: share of the gain of softmax attention over no attention that is retained, in percent"


def gain_tables(cells: Sequence[CellResults]) -> str:
    """Return one table of K per pattern, and the legend."""
    from cab.suite.check import invalid_cells
    from cab.suite.gain import suite_gains
    from cab.suite.verdict import gain_rows

    gains = suite_gains(cells, invalid_cells())
    tables = [
        f"{pattern}\n{_gain_table(gain_rows(gains, pattern))}" for pattern in gains.patterns if gains.patterns[pattern]
    ]
    return "\n\n".join([*tables, LEGEND])


def _gain_table(rows: Sequence[GainRow]) -> str:
    """Return the table of K of one pattern, with the legend of the marks it contains."""
    from cab.suite.verdict import ALIGN, HEADER

    table = text_table(HEADER, [row.texts for row in rows], align=ALIGN)
    return f"{table}\n{ONE_SEED_LEGEND}" if ONE_SEED_MARK in table else table


def print_verdict(name: str, records: Iterable[Record]) -> None:
    """Print the verdict on an attention per pattern, each followed by the table of K."""
    from cab.suite.cells import ANCHORS
    from cab.suite.verdict import judge_attention

    if name in ANCHORS:
        print(f"\n{name} is an anchor of the suite: its K is 100 (vanilla) or 0 (none) by definition")
        return
    verdicts = judge_attention(name, records)
    if not verdicts:
        reason = "no verdict, because its results have other options than the cells of the suite"
        print(f"\n{sanitize_text(name)}: {reason}")
    for verdict in verdicts:
        print("\n" + "\n".join(map(sanitize_text, verdict.lines)))
        if verdict.rows:
            print(_gain_table(verdict.rows))
