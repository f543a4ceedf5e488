"""`cab params`: parameter counts of preset paper, compared with the published counts."""

from __future__ import annotations

import argparse
import csv
import sys

from cab.cli.terminal import print_note
from cab.files.text_table import text_table
from cab.records.results import PAPER_DIR


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", action="store_true", help="CSV: pattern,backbone,attention,params")


def run(args: argparse.Namespace) -> int:
    from cab.paper.parameters import count_parameters

    published = _published()
    counts = count_parameters(list(published))
    if args.csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(["pattern", "backbone", "attention", "params"])
        writer.writerows([*cell, count] for cell, count in counts.items())
        return 0
    rows = []
    for cell, count in counts.items():
        agrees = f"{count / 1e6:.2f}" == f"{published[cell]:.2f}"
        rows.append([*cell, f"{count:,}", f"{published[cell]:.2f} M", "" if agrees else "differs"])
    print(text_table(["pattern", "backbone", "attention", "params", "published", ""], rows, align="lllrrl"))
    omitted = len(published) - len(counts)
    if omitted:
        print_note(f"{omitted} published counts omitted: backbone or attention not registered")
    return 0


def _published() -> dict[tuple[str, str, str], float]:
    """Return the published parameters in millions per (pattern, backbone, attention) (CAB and TransNormer)."""
    counts = {}
    for name in ("parameters.csv", "parameters_transnormer.csv"):
        with (PAPER_DIR / name).open(newline="") as file:
            for row in csv.DictReader(file):
                counts[row["pattern"], row["backbone"], row["attention"]] = float(row["params_millions"])
    return counts
