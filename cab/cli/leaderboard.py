"""`cab leaderboard`: table, page and figures from results."""

from __future__ import annotations

import argparse
from pathlib import Path

from cab.cli.results_arguments import add_sources, given_results
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
    parser.add_argument("--costs", type=Path, metavar="CSV", help="output of `cab efficiency`; adds cost curves")
    parser.add_argument(
        "--with-reference",
        action="store_true",
        help="include the bundled reference results (results/core, results/mini); without own results, show only these",
    )
    parser.add_argument("--figures", action="store_true", help="also write the paper's figures as PNG and PDF")


def run(args: argparse.Namespace) -> int:
    from cab.reports.board_table import write_suite_csv
    from cab.reports.leaderboard import score_boards, write_csv
    from cab.reports.suite_board import suite_board
    from cab.reports.task_sections import task_sections
    from cab.scoring import load_costs
    from cab.scoring.selection import rows_in_index

    has_figures = args.figures or args.format == "page"
    if has_figures:
        check_writable(args.out, "--out")
    is_alone = args.with_reference and args.results == [DEFAULT_DIR] and not DEFAULT_DIR.exists()  # no results yet
    if is_alone:
        args.results = [folder for folder in REFERENCE_DIRS if folder.is_dir()][:1]
    results, skipped = given_results(args)
    if args.with_reference:
        results = with_reference_results(results)
    scored = rows_in_index(results)
    unscored = results.drop(scored.index)
    boards = [] if scored.empty and not unscored.empty else score_boards(scored, normalization=args.normalization)
    suite = suite_board(results)
    sections = task_sections(unscored) if has_figures else []
    costs = load_costs(args.costs) if args.costs else None
    written: list[Path] = []
    if args.format == "markdown":
        from cab.reports.markdown import markdown

        print(markdown(boards, suite))
    else:
        from cab.reports.page import write_page

        if suite:
            written.append(write_suite_csv(suite, args.out))
        if boards:
            written.append(write_csv(boards, args.out))
        written += [section.write(args.out) for section in sections]
        written.append(
            write_page(
                boards,
                args.out,
                normalization=args.normalization,
                suite=suite,
                unscored=None if unscored.empty else unscored,
                sections=sections,
                costs=costs,
                skipped=skipped,
            )
        )
    if args.figures:
        from cab.reports.paper_figures import write_figures

        written += write_figures(boards, args.out, sections=sections, costs=costs)
    for path in written:
        print_note(f"wrote {path}")
    return 0
