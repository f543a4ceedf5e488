"""`cab data`: list, download and verify the published data sets."""

from __future__ import annotations

import argparse
import csv
import logging
import shlex
import sys
from pathlib import Path

from cab.cli.terminal import log_to_terminal
from cab.cli.text_table import ABSENT, text_table
from cab.data.check import State, take_stock
from cab.data.get import get
from cab.data.sources import DataSet, chosen_root, data_set, data_sets, readable_size
from cab.errors import UserError
from cab.files.folders import check_writable

COLUMNS = ("data", "state", "size", "tasks", "download", "path", "license", "license_notes", "source", "title")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|download|verify")
    root = argparse.ArgumentParser(add_help=False)
    root.add_argument("--data-root", dest="root", metavar="DATA", help="folder of all data sets (default: $CAB_DATA)")
    listed = verbs.add_parser("list", parents=[root], help="list the data sets with their state and source")
    listed.add_argument("--csv", action="store_true", help="print comma-separated values instead of paragraphs")
    get = verbs.add_parser(
        "download", parents=[root], help="download data sets to where the tasks read them; interrupted downloads resume"
    )
    get.add_argument("names", nargs="+", metavar="NAME", help="data sets (see cab data list)")
    get.add_argument(
        "--source",
        dest="source",
        metavar="PLACE",
        help="URL of a mirror that has the files under their names, or a local file or folder",
    )
    get.add_argument(
        "--prepare",
        nargs="*",
        metavar="KEY=VALUE",
        help="also fill the cache with the tokens, features or resized images that cab run preset=paper "
        "[KEY=VALUE ...] needs",
    )
    check = verbs.add_parser(
        "verify",
        parents=[root],
        help="compare counts, sizes and checksums with the published ones; exit status 1 if a data set is not complete",
    )
    check.add_argument("names", nargs="+", metavar="NAME", help="data sets (see cab data list)")
    check.add_argument("--csv", action="store_true", help="print comma-separated values instead of a table")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand and return its exit status."""
    if args.verb == "list":
        return _list(chosen_root(args.root), as_csv=args.csv)
    chosen, root = [data_set(name) for name in args.names], chosen_root(args.root)
    if root is None:
        raise UserError("the folder of the data sets is not set: use --data-root DATA or set CAB_DATA")
    if args.verb == "download":
        return _get(chosen, root, args.source, args.prepare)
    return _check(chosen, root, as_csv=args.csv)


def _get(chosen: list[DataSet], root: Path, source: str | None, overrides: list[str] | None) -> int:
    log_to_terminal(logging.INFO, "%(message)s", force=True)
    check_writable(root, "--data-root")
    whole = True
    for each in chosen:
        got = get(each, root, source=source)
        whole = whole and got.stock.state is State.READY
        print(f"{each.name} is {got.stock.state} in {got.stock.folder}")
        for step in got.by_hand:
            print(f"  {each.license}: {each.license_notes}")
            print(f"  {step}")
            again = f"cab data download {each.name} --data-root {shlex.quote(str(root))}"
            print(f"  then run: {again} --source DOWNLOADED_FILE_OR_FOLDER")
        for finding in got.stock.findings:
            if not finding.is_full and not got.by_hand:
                print(f"  {finding.field}: {finding.found:,} of {finding.expected:,} ({finding.verdict})")
        if overrides is not None and got.stock.state is State.READY:
            _prepare(each, root, overrides)
    return 0 if whole else 1


def _prepare(each: DataSet, root: Path, overrides: list[str]) -> None:
    from cab.runner.prepared_data import prepare  # imports torch

    for task in prepare(each, root, overrides):
        print(f"  prepared for {task}")


def _list(root: Path | None, *, as_csv: bool) -> int:
    rows = [_row(each, root) for each in data_sets().values()]
    if as_csv:
        csv.writer(sys.stdout).writerows([COLUMNS, *rows])
        return 0
    for row in rows:
        name, state, size, tasks, download, path, license, license_notes, source, title = row
        print(f"{name}: {title}")
        print(f"  state: {state}; size: {size}; tasks: {tasks}; path: {path}")
        print(f"  source: {source} ({download})")
        print(f"  license: {license} ({license_notes})\n")
    print(
        "To download one, or get instructions for a manual download: cab data download NAME. "
        "Every task also has generated data: dataset=synthetic"
    )
    return 0


def _row(each: DataSet, root: Path | None) -> list[str]:
    stock = None if root is None else take_stock(each, root)
    path = Path("DATA", each.folders[0]) if stock is None else stock.folder
    return [
        each.name,
        ABSENT if stock is None else stock.state,
        "unknown" if each.disk_bytes is None else readable_size(each.disk_bytes),
        " ".join(each.tasks),
        "manual download" if each.by_hand else "without registration",
        str(path),
        each.license,
        each.license_notes,
        each.homepage,
        each.title,
    ]


def _check(chosen: list[DataSet], root: Path, *, as_csv: bool) -> int:
    whole = True
    header = ["data", "field", "actual", "published", "verdict", "source"]
    rows = []
    for each in chosen:
        stock = take_stock(each, root, thorough=True)
        whole = whole and stock.state is State.READY
        rows += [[each.name, f.field, f"{f.found:,}", f"{f.expected:,}", f.verdict, f.source] for f in stock.findings]
        if not as_csv:
            print(f"{each.name} is {stock.state} in {stock.folder}")
            print(text_table(header[1:], [row[1:] for row in rows if row[0] == each.name], align="lrrll"), end="\n\n")
    if as_csv:
        csv.writer(sys.stdout).writerows([header, *rows])
    return 0 if whole else 1
