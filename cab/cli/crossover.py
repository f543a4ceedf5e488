"""`cab crossover`: sequence length from which an attention is cheaper than softmax attention."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from cab.cli.text_table import number, text_table
from cab.files.sanitize import sanitize_table

if TYPE_CHECKING:
    import pandas as pd

EPILOG = """\
The crossover length is the paper's efficiency length. COSTS is a file written by `cab efficiency --out`, or a CSV file
with the columns attention,length,time_ms,memory_mib. An optional column `complexity` (n, n log n, n^2, ...) specifies
how the cost grows (default: n).

Protocol default: fit a non-negative sum of the terms of each complexity to the costs (least squares of relative
errors), with a bootstrap confidence interval. The result is the length from which the attention remains cheaper, or
`never` or `always`.
Protocol paper: appendix N as it was computed: the larger intersection of a parabola and a line, where the line for time
excludes the shortest length, and R2 is truncated to three digits.

examples:
  cab crossover costs.csv --baseline eager
  cab crossover results/paper/efficiency_cost.csv --protocol paper --csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("costs", type=Path, metavar="COSTS", help="CSV of time and memory against length")
    parser.add_argument("--protocol", default="default", metavar="P", help="default (see below) or paper")
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="attention to compare with: vanilla (fused) or eager (stores the attention weights, as in the paper); "
        "default: both in tables if both were measured, vanilla in CSV",
    )
    parser.add_argument(
        "--csv", action="store_true", help="print CSV: attention,pattern,phase,resource,length,r2,low,high"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
    from cab.scoring import efficiency_length, load_costs
    from cab.scoring.efficiency_length import COLUMNS

    costs = load_costs(args.costs)
    if args.csv:
        table = efficiency_length(costs, protocol=args.protocol, baseline=args.baseline or "vanilla")
        texts = {name: [_csv_length(value) for value in table[name]] for name in ("length", "low", "high")}
        r2 = [f"{value:.4f}" if value == value else "" for value in table["r2"]]
        sanitize_table(table.assign(**texts, r2=r2)[COLUMNS]).to_csv(sys.stdout, index=False, lineterminator="\n")
        return 0
    measured = set(costs["attention"])
    baselines = [args.baseline] if args.baseline else [name for name in ("vanilla", "eager") if name in measured]
    parts = []
    for baseline in baselines or ["vanilla"]:
        table = efficiency_length(costs, protocol=args.protocol, baseline=baseline)
        parts.append(f"length from which each attention is cheaper than {baseline}\n{_text(table)}")
    print("\n\n".join(parts))
    return 0


def _csv_length(value: float) -> str:
    return _length(value).replace(",", "").replace("-", "")


def _length(value: float) -> str:
    from cab.scoring.efficiency_length import ALWAYS, NEVER

    return {ALWAYS: "always", NEVER: "never"}.get(value) or number(value, 0)


def _text(table: pd.DataFrame) -> str:
    rows = []
    for row in table.to_dict("records"):
        interval = "-" if row["low"] != row["low"] else f"{_length(row['low'])} .. {_length(row['high'])}"
        names = [row[name] for name in ("attention", "pattern", "phase", "resource")]
        rows.append([*names, _length(row["length"]), interval, number(row["r2"]), row["note"]])
    header = ["attention", "pattern", "phase", "resource", "length", "95% interval", "R2", "note"]
    return text_table(header, rows, align="llllrrrl")
