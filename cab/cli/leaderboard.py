"""`cab leaderboard`: table, page and figures from results."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.cli.arguments import add_sources, valid_results
from cab.cli.terminal import print_note
from cab.files.disk import check_writable
from cab.patterns import pattern_rank
from cab.records.files import REFERENCE_DIRS
from cab.results.costs import load_costs, read_costs
from cab.results.formats import markdown
from cab.results.guards import first_reference, in_index
from cab.results.load import DEFAULT_DIR
from cab.results.table import Table, write_csv

if TYPE_CHECKING:
    from cab.results.leaderboard import Board
    from cab.results.suite_board import Suite

DEFAULT_OUT = DEFAULT_DIR / "leaderboard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sources(parser)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help=f"output folder (default: {DEFAULT_OUT})")
    parser.add_argument(
        "--format",
        choices=("page", "markdown", "latex"),
        default="page",
        help="page (default): index.html and CSV files in the --out folder; markdown, latex: tables on stdout",
    )
    parser.add_argument(
        "--costs",
        type=Path,
        metavar="CSV",
        help="output of `cab efficiency`; adds cost curves, and your attentions' costs",
    )
    parser.add_argument(
        "--with-reference",
        action="store_true",
        help="include the bundled reference results (results/core, results/mini); without own results, show only these",
    )
    parser.add_argument("--figures", action="store_true", help="also write the paper's figures as PNG and PDF")


def run(args: argparse.Namespace) -> int:
    import pandas as pd

    from cab.results.index import PRINTED
    from cab.results.leaderboard import index_boards, records_csv
    from cab.results.suite_board import suite_csv, suite_of

    is_page = args.format == "page"
    if args.figures or is_page:
        check_writable(args.out, "--out")
    if args.with_reference and args.results == [DEFAULT_DIR] and not DEFAULT_DIR.exists():
        args.results = list(REFERENCE_DIRS)
    everything, skipped = valid_results(args, with_reference=args.with_reference)
    frame = first_reference(everything)
    boards = index_boards(frame, args.normalization)
    costs = load_costs(args.costs) if args.costs else None
    suite = suite_of(everything, read_costs(args.costs) if args.costs else {})
    if not is_page:
        print("\n\n".join(_tables(boards, suite, args)))
        if not args.figures:
            return 0
    from cab.results.page import write_page
    from cab.results.sections import board_sections, task_sections, write_figures

    of_tasks = task_sections(frame.drop(in_index(frame).index))
    sections = [*board_sections(boards), *(section.section(rows) for section, rows in of_tasks)]
    if costs is not None:
        from cab.efficiency.curves import efficiency_section

        sections.append(efficiency_section(costs))
    written: list[Path] = []
    if is_page:
        if suite and len(suite.board):
            written.append(write_csv(suite_csv(suite.board), args.out / "suite.csv"))
        if boards:
            tables = pd.concat([board.table for board in boards], ignore_index=True)
            written.append(write_csv(tables, args.out / "leaderboard.csv"))
        written += [section.write(rows, args.out) for section, rows in of_tasks]
        written.append(write_csv(records_csv(everything), args.out / "records.csv"))
        used = {board.scores.normalization for board in boards} - {PRINTED}
        options: dict[str, Any] = {"sections": sections, "suite": suite, "files": written, "skipped": skipped}
        written.append(write_page(everything, args.out, normalizations=sorted(used), **options))
    if args.figures:
        written += write_figures(sections, args.out)
    print_note(f"wrote {', '.join(path.name for path in written)} into {args.out}")
    return 0


def _tables(boards: Sequence[Board], suite: Suite | None, args: argparse.Namespace) -> Iterator[str]:
    """Yield the board of the suite, and a table per pattern of compared results, in Markdown or LaTeX."""
    from cab.results.leaderboard import compared, pattern_table
    from cab.results.suite_board import board_table, main_sentence

    is_latex = args.format == "latex"
    shown = Table.to_latex if is_latex else Table.to_markdown
    if suite and len(suite.board):
        sentence = main_sentence(suite)
        yield f"% {sentence}" if is_latex else markdown(sentence)
        yield shown(board_table(suite))
    for group, results in compared(boards):
        frames = [board.results for board in group] if results is None else [results]
        patterns = sorted({pattern for frame in frames for pattern in frame["pattern"]}, key=pattern_rank)
        yield from (shown(pattern_table(group, pattern, results)) for pattern in patterns)
