"""`cab data`: list, download and verify the published data sets."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from cab.cli.terminal import log_to_terminal
from cab.data.check import State, take_inventory
from cab.data.download import download
from cab.data.sources import DataSet, chosen_root, data_set, data_sets, fetch_hint
from cab.errors import UserError
from cab.files.disk import check_writable
from cab.files.text_table import ABSENT, print_rows

IN_TABLE = ("data", "state", "size", "tasks", "download", "license")
PARAGRAPH = """\
{data}: {title}
  state: {state}; size: {size}; tasks: {tasks}; path: {path}
  source: {source} ({download})
  license: {license} ({license_notes})
"""
LIST_END = (
    "Source, terms and folder of one: cab data list NAME. To download it: cab data download NAME.\n"
    "Every task also has generated data: dataset=synthetic"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|download|verify")
    root = argparse.ArgumentParser(add_help=False)
    root.add_argument("--data-root", dest="root", metavar="DATA", help="folder of all data sets (default: $CAB_DATA)")
    list_parser = verbs.add_parser("list", parents=[root], help="list the data sets with their state and source")
    list_parser.add_argument(
        "names", nargs="*", metavar="NAME", help="data sets to describe in full (default: a table of all)"
    )
    list_parser.add_argument("--csv", action="store_true", help="print every column as CSV")
    download_parser = verbs.add_parser(
        "download",
        parents=[root],
        help="download data sets to where the tasks read them; complete files are not downloaded again",
    )
    download_parser.add_argument("names", nargs="+", metavar="NAME", help="data sets (see cab data list)")
    source = "URL of a mirror, or a local file or folder with the files"
    download_parser.add_argument("--source", metavar="PLACE", help=source)
    prepare = "also fill the cache that cab run preset=paper [KEY=VALUE ...] reads (tokens, features, images)"
    download_parser.add_argument("--prepare", nargs="*", metavar="KEY=VALUE", help=prepare)
    verify_parser = verbs.add_parser(
        "verify",
        parents=[root],
        help="compare counts, sizes and checksums with the published ones; exit status 1 if a data set is not complete",
    )
    verify_parser.add_argument("names", nargs="+", metavar="NAME", help="data sets (see cab data list)")
    verify_parser.add_argument("--csv", action="store_true", help="print comma-separated values instead of a table")


def run(args: argparse.Namespace) -> int:
    """Run the subcommand and return its exit status."""
    root = chosen_root(args.root)
    chosen = [data_set(name) for name in args.names]
    if args.verb == "list":
        _list(chosen, root, as_csv=args.csv)
        return 0
    if root is None:
        raise UserError("the folder of the data sets is not set: use --data-root DATA or set CAB_DATA")
    if args.verb == "verify":
        return _verify(chosen, root, as_csv=args.csv)
    log_to_terminal(logging.INFO, "%(message)s", force=True)
    check_writable(root, "--data-root")
    are_complete = [_download(one, root, args.source, args.prepare) for one in chosen]
    return 0 if all(are_complete) else 1


def _download(data: DataSet, root: Path, source: str | None, overrides: list[str] | None) -> bool:
    """Download a data set and return whether it is complete."""
    inventory, manual_steps = download(data, root, source=source)
    print(f"{data.name} is {inventory.state} in {inventory.folder}")
    for step in manual_steps:
        print(f"  {data.license}: {data.license_notes}")
        print(f"  {step}")
        print(f"  then run: {fetch_hint(data.name, root)} --source DOWNLOADED_FILE_OR_FOLDER")
    for finding in inventory.findings if not manual_steps else ():
        if not finding.is_complete:
            print(f"  {finding.field}: {finding.actual:,} of {finding.published:,} ({finding.outcome})")
    is_ready = inventory.state is State.READY
    if overrides is not None and is_ready:
        from cab.runner.launch import prepare  # imports torch

        for task in prepare(data, root, overrides):
            print(f"  prepared for {task}")
    return is_ready


def _list(chosen: list[DataSet], root: Path | None, *, as_csv: bool) -> None:
    rows = [_row(data, root) for data in chosen or data_sets().values()]
    if chosen and not as_csv:
        print("\n".join(PARAGRAPH.format(**row) for row in rows), end="")
        return
    columns = tuple(rows[0]) if as_csv else IN_TABLE
    print_rows([columns, *([row[name] for name in columns] for row in rows)], as_csv=as_csv, align="llrl", width=100)
    if not as_csv:
        print(f"\n{LIST_END}")


def _row(data: DataSet, root: Path | None) -> dict[str, str]:
    inventory = None if root is None else take_inventory(data, root)
    return {
        "data": data.name,
        "state": ABSENT if inventory is None else inventory.state,
        "size": "unknown" if data.disk_bytes is None else _readable_size(data.disk_bytes),
        "tasks": " ".join(data.tasks),
        "download": "manual download" if data.has_manual_item else "without registration",
        "path": str(Path("DATA", data.folders[0]) if inventory is None else inventory.folder),
        "license": data.license,
        "license_notes": data.license_notes,
        "source": data.homepage,
        "title": data.title,
    }


def _readable_size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


def _verify(chosen: list[DataSet], root: Path, *, as_csv: bool) -> int:
    header = ["field", "actual", "published", "outcome", "source"]
    inventories = {data.name: take_inventory(data, root, thorough=True) for data in chosen}
    tables = {
        name: [[f.field, f"{f.actual:,}", f"{f.published:,}", f.outcome, f.source] for f in inventory.findings]
        for name, inventory in inventories.items()
    }
    if as_csv:
        print_rows([["data", *header], *([name, *row] for name in tables for row in tables[name])], as_csv=True)
    else:
        for name, inventory in inventories.items():
            print(f"{name} is {inventory.state} in {inventory.folder}")
            print_rows([header, *tables[name]], as_csv=False, align="lrrll")
            print()
    return 0 if all(inventory.state is State.READY for inventory in inventories.values()) else 1
