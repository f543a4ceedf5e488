"""`cab leaderboard`: table, page and figures from results."""

from __future__ import annotations

import argparse
from pathlib import Path

from cab.cli.arguments import add_sources, valid_results
from cab.cli.terminal import print_note
from cab.files.disk import check_writable
from cab.records.record import REFERENCE_DIRS
from cab.records.results import DEFAULT_DIR, with_reference_results

DEFAULT_OUT = DEFAULT_DIR / "leaderboard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_sources(parser)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help=f"output folder (default: {DEFAULT_OUT})")
    parser.add_argument(
        "--format",
        choices=("page", "markdown"),
        default="page",
        help="page (default): index.html and CSV files in the --out folder; markdown: tables on stdout",
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

    from cab.reports.leaderboard import printable_records, score_boards
    from cab.reports.suite_board import suite_board
    from cab.reports.tables import write_csv
    from cab.results.cells import PRESET
    from cab.results.costs import load_costs, read_costs
    from cab.results.selection import rows_in_index

    is_page = args.format == "page"
    if args.figures or is_page:
        check_writable(args.out, "--out")
    if args.with_reference and args.results == [DEFAULT_DIR] and not DEFAULT_DIR.exists():
        args.results = [folder for folder in REFERENCE_DIRS if folder.is_dir()][:1]
    results, skipped = valid_results(args)
    if args.with_reference:
        results = with_reference_results(results)
    unscored = results.drop(rows_in_index(results).index)
    boards = [] if len(unscored) == len(results) else score_boards(results, normalization=args.normalization)
    costs = load_costs(args.costs) if args.costs else None
    own_costs = read_costs(args.costs) if args.costs else {}
    suite = suite_board(results, own_costs, with_reference=args.with_reference)
    if not is_page:
        from cab.reports.markdown import markdown

        print(markdown(boards, suite))
        if not args.figures:
            return 0
    from cab.reports.efficiency import efficiency_section  # imports matplotlib
    from cab.reports.page import write_page
    from cab.reports.sections import board_section, task_sections, write_figures

    of_tasks = task_sections(unscored)
    of_suite = [board for board in boards if suite and board.synthetic and board.preset == PRESET]  # in leaderboard.csv
    sections = [board_section(board) for board in boards if not any(board is each for each in of_suite)]
    sections += [section.section(rows) for section, rows in of_tasks]
    sections += [] if costs is None else [efficiency_section(costs)]
    written: list[Path] = []
    if is_page:
        if suite:
            written.append(write_csv(suite.csv, args.out / "suite.csv"))
        if boards:
            tables = pd.concat([board.table for board in boards], ignore_index=True)
            written.append(write_csv(tables, args.out / "leaderboard.csv"))
        written += [section.write(rows, args.out) for section, rows in of_tasks]
        written.append(write_csv(printable_records(results), args.out / "records.csv"))
        options = {"normalization": args.normalization, "sections": sections, "suite": suite, "skipped": skipped}
        written.append(write_page(results, args.out, files=written, **options))
    if args.figures:
        written += write_figures([*map(board_section, of_suite), *sections], args.out)
    print_note(f"wrote {', '.join(path.name for path in written)} into {args.out}")
    return 0
