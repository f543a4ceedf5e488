"""`cab data`: the published data sets; which are here, where the others come from, and whether they are whole."""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

from cab.cli.text_table import ABSENT, text_table
from cab.data.check import State, take_stock
from cab.data.sources import DataSet, chosen_root, data_set, data_sets
from cab.errors import UserError

COLUMNS = ("data", "state", "size", "tasks", "download", "lies_in", "licence", "terms", "source", "title")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|get|check")
    root = argparse.ArgumentParser(add_help=False)
    root.add_argument("--in", dest="root", metavar="DATA", help="the folder of all data sets (default: $CAB_DATA)")
    listed = verbs.add_parser("list", parents=[root], help="every data set: where it comes from and what is here")
    listed.add_argument("--csv", action="store_true", help="comma-separated values instead of lines")
    check = verbs.add_parser(
        "check", parents=[root], help="counts, sizes and checksums against what was published; status 1 if not whole"
    )
    check.add_argument("names", nargs="+", metavar="NAME")
    check.add_argument("--csv", action="store_true", help="comma-separated values instead of a table")


def run(args: argparse.Namespace) -> int:
    if args.verb == "list":
        return _list(chosen_root(args.root), as_csv=args.csv)
    return _check([data_set(name) for name in args.names], _needed(args.root), as_csv=args.csv)


def _needed(named: str | None) -> Path:
    root = chosen_root(named)
    if root is None:
        raise UserError("name the folder of the data sets: --in DATA, or set CAB_DATA")
    return root


def _list(root: Path | None, *, as_csv: bool) -> int:
    rows = [_row(each, root) for each in data_sets().values()]
    if as_csv:
        csv.writer(sys.stdout).writerows([COLUMNS, *rows])
        return 0
    for row in rows:
        name, state, size, tasks, download, lies_in, licence, terms, source, title = row
        print(f"{name}: {title}")
        print(f"  {state}; {size}; for {tasks}; lies in {lies_in}")
        print(f"  from {source} ({download})")
        print(f"  {licence}: {terms}\n")
    print("cab data get NAME brings one, or says what to do by hand; dataset=synthetic of every task needs no file")
    return 0


def _row(each: DataSet, root: Path | None) -> list[str]:
    stock = None if root is None else take_stock(each, root)
    lies_in = Path("DATA", each.folders[0]) if stock is None else stock.folder
    return [
        each.name,
        ABSENT if stock is None else stock.state,
        _size(each.disk_bytes),
        " ".join(each.tasks),
        "by hand" if each.by_hand else "without registration",
        str(lies_in),
        each.licence,
        each.terms,
        each.homepage,
        each.title,
    ]


def _size(count: int | None) -> str:
    """In the units of decimal prefixes, as publications give them."""
    if count is None:
        return "size unknown"
    for unit, digits in (("GB", 9), ("MB", 6)):
        if count >= 10**digits:
            return f"{count / 10**digits:.1f} {unit}"
    return f"{count / 1000:.0f} kB"


def _check(chosen: list[DataSet], root: Path, *, as_csv: bool) -> int:
    whole = True
    header = ["data", "what", "here", "published", "verdict", "known_from"]
    rows = []
    for each in chosen:
        stock = take_stock(each, root, thorough=True)
        whole = whole and stock.state is State.READY
        rows += [
            [each.name, f.what, f"{f.found:,}", f"{f.expected:,}", f.verdict, f.known_from] for f in stock.findings
        ]
        if not as_csv:
            print(f"{each.name} is {stock.state} in {stock.folder}")
            print(text_table(header[1:], [row[1:] for row in rows if row[0] == each.name], align="lrrll"), end="\n\n")
    if as_csv:
        csv.writer(sys.stdout).writerows([header, *rows])
    return 0 if whole else 1
