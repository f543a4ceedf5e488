"""The board of the suite and verdicts for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from cab.files.disk import sanitize_text
from cab.files.text_table import text_table

if TYPE_CHECKING:
    from cab.records.record import Record
    from cab.reports.suite_board import SuiteBoard


def board_texts(board: SuiteBoard) -> Iterator[str]:
    """Yield one table per pattern, with its abilities, and the legend."""
    from cab.reports.board_tables import COST_BLOCK, board_table

    for pattern in board.patterns:
        table = board_table(board, [ability for ability in board.abilities if ability.pattern == pattern])
        chosen = [number for number, column in enumerate(table.columns) if column.group != COST_BLOCK]
        header = ["attention", "family", *(table.columns[number].label for number in chosen)]
        rows = [
            [
                f"{row.sign} {row.label}".lstrip(),
                row.group,
                *(row.cells[number].marked for number in chosen),
            ]
            for row in table.rows
        ]
        yield text_table(header, rows, align="ll" + "r" * len(chosen))
    yield "\n".join(table.legend)


def print_verdict(name: str, records: Iterable[Record]) -> None:
    """Print the verdict on an attention per pattern."""
    from cab.suite.cells import ANCHORS
    from cab.suite.verdict import judge_attention

    if name in ANCHORS:
        print(f"\n{name} is an anchor of the suite: its K is 100 (vanilla) or 0 (none) by definition")
        return
    verdicts = judge_attention(name, records)
    if not verdicts:
        reason = "no verdict, because its results have other options than the cells of the suite"
        print(f"\n{sanitize_text(name)}: {reason}")
    for lines in verdicts:
        print("\n" + "\n".join(map(sanitize_text, lines)))
