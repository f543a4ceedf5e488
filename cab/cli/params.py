"""`cab params`: parameter counts of preset paper, compared with the published counts."""

from __future__ import annotations

import argparse

from cab.cli.terminal import print_note
from cab.files.text_table import print_rows
from cab.paper.published import rows

HEADER = ("pattern", "backbone", "attention", "params")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = sorted({line["backbone"] for line in _published()})
    parser.add_argument("--backbone", choices=names, metavar="NAME", help=f"one of {', '.join(names)} (default: all)")
    parser.add_argument("--csv", action="store_true", help=f"CSV: {','.join(HEADER)}")


def _published() -> list[dict[str, str]]:
    return [*rows("parameters.csv"), *rows("parameters_transnormer.csv")]


def run(args: argparse.Namespace) -> int:
    from cab.paper.parameters import count_parameters

    lines = [line for line in _published() if args.backbone in (None, line["backbone"])]
    published = {(x["pattern"], x["backbone"], x["attention"]): float(x["params_millions"]) for x in lines}
    counts = count_parameters(published)
    if args.csv:
        print_rows([HEADER, *([*cell, count] for cell, count in counts.items())], as_csv=True)
        return 0
    shown = []
    for cell, count in counts.items():
        printed = f"{published[cell]:.2f}"
        agrees = f"{count / 1e6:.2f}" == printed
        shown.append([*cell, f"{count:,}", f"{printed} M", "" if agrees else "differs"])
    print_rows([[*HEADER, "published", ""], *shown], as_csv=False, align="lllrrl")
    if len(counts) < len(published):
        print_note(f"{len(published) - len(counts)} published counts omitted: backbone or attention not registered")
    return 0
