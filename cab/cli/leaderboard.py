"""`cab leaderboard`: table, page and figures from results."""

from __future__ import annotations

import argparse
from pathlib import Path

from cab.cli.results_arguments import add_sources, given_results
from cab.cli.terminal import print_note
from cab.files.folders import check_writable
from cab.records.results import DEFAULT_DIR, REFERENCE_DIRS, with_reference_results

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
        help="include the bundled reference results (results/mini); without own results, show only these",
    )
    parser.add_argument("--figures", action="store_true", help="also write the paper's figures as PNG and PDF")


def run(args: argparse.Namespace) -> int:
    from cab.reports.board_table import write_suite_csv
    from cab.reports.leaderboard import score_boards, write_csv
    from cab.reports.suite_board import suite_board
    from cab.scoring import load_costs
    from cab.scoring.selection import rows_in_index

    if args.figures or args.format == "page":
        check_writable(args.out, "--out")
    is_alone = args.with_reference and args.results == [DEFAULT_DIR] and not DEFAULT_DIR.exists()  # no results yet
    if is_alone:
        args.results = [folder for folder in REFERENCE_DIRS if folder.is_dir()][:1]
    results, skipped = given_results(args)
    if args.with_reference:
        results = with_reference_results(results)
    scored = rows_in_index(results)
    probes = results.drop(scored.index)
    boards = [] if scored.empty and not probes.empty else score_boards(scored, normalization=args.normalization)
    suite = suite_board(results)
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
        if not probes.empty:
            from cab.reports.glue import glue_table, write_glue
            from cab.reports.lra import arena_table, write_arena
            from cab.reports.needles import needle_table, write_needles
            from cab.reports.probes import probe_table, write_probes

            tables = (
                (probe_table, write_probes),
                (needle_table, write_needles),
                (glue_table, write_glue),
                (arena_table, write_arena),
            )
            for table_of, write in tables:
                table = table_of(probes)
                if not table.empty:
                    written.append(write(table, args.out))
        shown = None if probes.empty else probes
        written.append(
            write_page(
                boards,
                args.out,
                normalization=args.normalization,
                suite=suite,
                probes=shown,
                costs=costs,
                skipped=skipped,
            )
        )
    if args.figures:
        from cab.reports.paper_figures import write_figures

        written += write_figures(boards, args.out, probes=probes, costs=costs)
    for path in written:
        print_note(f"wrote {path}")
    return 0
