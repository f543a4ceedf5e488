"""Arguments that several commands share: patterns, and sources of results."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.cli.terminal import print_note
from cab.errors import EXAMPLE_COMMAND, UserError
from cab.patterns import Pattern
from cab.records.files import ROOT
from cab.records.names import MIXED_CODE
from cab.results.guards import of_one_data, select
from cab.results.load import DEFAULT_DIR, Loaded, load

if TYPE_CHECKING:
    import pandas as pd

MOST_NOTES = 20  # printed one by one; the others are counted


class _Patterns(argparse.Action):
    """Patterns separated by commas; those of a repeated option are added."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: Any = None) -> None:
        words = ",".join([values] if isinstance(values, str) else values).split(",")
        earlier = () if namespace.pattern is self.default else namespace.pattern
        namespace.pattern = list(dict.fromkeys([*earlier, *map(Pattern.parse, words)]))


def add_pattern(
    parser: argparse.ArgumentParser, help_text: str, *, nargs: str | None = None, default: Sequence[Pattern] = ()
) -> None:
    """Add ``--pattern NS,CS``, which can be repeated; with ``nargs="+"``, spaces separate patterns as well."""
    metavar = "P[,P]" if nargs is None else ("P[,P]", "P")
    parser.add_argument("--pattern", action=_Patterns, nargs=nargs, default=default, metavar=metavar, help=help_text)


def results_path(text: str) -> Path:
    """Return the path; a missing ``results/...`` is that of the package, so that examples work in every folder."""
    path, bundled = Path(text), ROOT / text
    return bundled if text.startswith("results/") and not path.exists() and bundled.exists() else path


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the sources of results and their normalization."""
    parser.add_argument(
        "results",
        nargs="*",
        type=results_path,
        metavar="RESULTS",
        default=[DEFAULT_DIR],
        help=f"folders of records, single records, or CSV files with the columns of results/paper/results.csv "
        f"(default: {DEFAULT_DIR})",
    )
    add_accept_code(parser)
    parser.add_argument(
        "--normalization",
        metavar="N",
        help="mean and standard deviation for the index: official (the released script; default for real data), paper "
        "(as printed), or results (those of the given results; always in a rehearsal). Naming one also recomputes "
        "published indices",
    )


def add_accept_code(parser: argparse.ArgumentParser) -> None:
    """Add ``--accept-code``."""
    parser.add_argument(
        "--accept-code",
        action="store_true",
        help=f"average seeds that were run with different code of the project; the row is marked [{MIXED_CODE}]",
    )


def add_results_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of :func:`add_sources`, and filters."""
    add_sources(parser)
    parser.add_argument("--preset", help="use only results of this preset")
    add_pattern(parser, "use only these patterns (NS, CS, NC, CC)", nargs="+")
    parser.add_argument("--task", nargs="+", metavar="T", help="use only these tasks")
    parser.add_argument("--dataset", nargs="+", metavar="D", help="use only these data sets")
    parser.add_argument(
        "--latest-version", action="store_true", help="use only results of the newest version of each task"
    )


def valid_results(args: argparse.Namespace, *, with_reference: bool = False, is_optional: bool = False) -> Loaded:
    """Return the frame and the messages about skipped records; UserError without results that are not optional."""
    loaded = load(args.results, accept_code=args.accept_code, with_reference=with_reference)
    if loaded.frame.empty and not is_optional:
        sources = ", ".join(map(str, args.results))
        raise UserError(f"no valid result in {sources}; run a cell first, for example: `{EXAMPLE_COMMAND}`")
    return loaded


def selected_results(args: argparse.Namespace) -> pd.DataFrame:
    """Return the results that match the filters, of one version of the data in each place."""
    names = {"preset": args.preset, "patterns": args.pattern, "tasks": args.task, "datasets": args.dataset}
    return of_one_data(select(valid_results(args).frame, **names, latest=args.latest_version))


def print_notes(notes: Iterable[str]) -> None:
    """Print notes about a table to stderr."""
    notes = list(dict.fromkeys(notes))
    more = len(notes) - MOST_NOTES
    for note in [*notes[:MOST_NOTES], *([f"and {more} more"] if more > 0 else [])]:
        print_note(f"note: {note}")
