"""`cab params`: parameter counts of the paper preset, beside the published ones."""

from __future__ import annotations

import argparse
import csv
import sys

from cab.results import PAPER_DIR


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--csv", action="store_true", help="pattern,backbone,attention,params and nothing else")


def run(args: argparse.Namespace) -> int:
    from cab.parameters import count_parameters

    published = _published()
    counts = count_parameters(list(published))
    if args.csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(["pattern", "backbone", "attention", "params"])
        writer.writerows([*cell, count] for cell, count in counts.items())
        return 0
    print(f"{'pattern':<8} {'backbone':<16} {'attention':<14} {'params':>12}  {'published':>9}")
    for (pattern, backbone, attention), count in counts.items():
        printed = published[pattern, backbone, attention]
        agrees = "" if f"{count / 1e6:.2f}" == f"{printed:.2f}" else "  differs when rounded"
        print(f"{pattern:<8} {backbone:<16} {attention:<14} {count:>12,}  {printed:>7.2f} M{agrees}")
    left = len(published) - len(counts)
    if left:
        print(f"{left} published counts are of backbones or attentions that are not registered", file=sys.stderr)
    return 0


def _published() -> dict[tuple[str, str, str], float]:
    """Tables 16-19: millions of parameters of every (pattern, backbone, attention)."""
    with (PAPER_DIR / "parameters.csv").open(newline="") as file:
        return {
            (row["pattern"], row["backbone"], row["attention"]): float(row["params_millions"])
            for row in csv.DictReader(file)
        }
