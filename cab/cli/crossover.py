"""`cab crossover`: the sequence length above which an attention is cheaper than softmax attention.

Computes the efficiency length of the paper (Appendix N). COSTS is the output of `cab efficiency --out`, or a CSV file
with the columns attention,length,time_ms,memory_mib. The optional column `complexity` (n, n log n, n^2, ...) selects
the cost model; the default is n.

The length is that above which the attention stays cheaper, or `never`, or `always`. Protocol default fits a sum of
the terms of each complexity and needs four lengths; protocol paper fits a parabola and a line, as Appendix N does. Rows
of COSTS with another protocol are ignored if some have this one. Costs of several files, runs or settings are compared
within each; with --csv, the column `setting` names it.

examples:
  cab crossover costs.csv --baseline eager
  cab crossover costs.csv results/paper/efficiency_cost.csv --protocol paper
  cab crossover results/efficiency/costs.csv --csv
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cab.cli.arguments import print_notes, results_path
from cab.files.disk import listed
from cab.files.text_table import number, print_rows, text_table

if TYPE_CHECKING:
    import pandas as pd


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "costs", nargs="+", type=results_path, metavar="COSTS", help="CSV files of time and memory by length"
    )
    parser.add_argument("--protocol", default="default", metavar="P", help="default or paper")
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="attention to compare with: vanilla is fused, eager materializes the weights as in the paper "
        "(default: both if measured; with --csv vanilla)",
    )
    parser.add_argument("--csv", action="store_true", help="CSV: attention,pattern,phase,resource,length,r2,low,high")


def run(args: argparse.Namespace) -> int:
    from cab.results.costs import load_costs
    from cab.results.efficiency_length import LENGTH_COLUMNS, efficiency_length

    costs = load_costs(*args.costs, protocol=args.protocol)
    if args.csv:
        table = efficiency_length(costs, protocol=args.protocol, baseline=args.baseline or "vanilla")
        lengths = {name: [_length(value, "", "") for value in table[name]] for name in ("length", "low", "high")}
        r2 = [f"{value:.4f}" if value == value else "" for value in table["r2"]]
        columns = [*LENGTH_COLUMNS, "setting"] if table["setting"].nunique() > 1 else LENGTH_COLUMNS
        print_rows([columns, *table.assign(**lengths, r2=r2)[columns].to_numpy()], as_csv=True)
        return 0
    measured = set(costs["attention"])
    baselines = [args.baseline] if args.baseline else [name for name in ("vanilla", "eager") if name in measured]
    parts, shown = [], set()
    for baseline in baselines or ["vanilla"]:
        table = efficiency_length(costs, protocol=args.protocol, baseline=baseline)
        for setting in dict.fromkeys(table["setting"]):
            rows = table[table["setting"] == setting]
            if table["setting"].nunique() > 1 and rows["length"].isna().all():
                continue
            shown.add(setting)
            heading = f"length above which each attention is cheaper than {baseline}{setting and f': {setting}'}"
            parts.append(f"{heading}\n{_text(rows)}")
    print("\n\n".join(parts))
    if without := sorted({*costs["setting"]} - shown):
        print_notes([f"no efficiency length, because too few lengths are measured: {listed(without)}"])
    return 0


def _length(value: float, absent: str = "-", comma: str = ",") -> str:
    from cab.results.efficiency_length import ALWAYS, NEVER

    word = {ALWAYS: "always", NEVER: "never"}.get(value)
    return word or (f"{value:{comma}.0f}" if value == value else absent)


def _text(table: pd.DataFrame) -> str:
    rows = []
    for row in table.to_dict("records"):
        interval = "-" if row["low"] != row["low"] else f"{_length(row['low'])} .. {_length(row['high'])}"
        names = [row[name] for name in ("attention", "pattern", "phase", "resource")]
        rows.append([*names, _length(row["length"]), interval, number(row["r2"]), row["note"]])
    header = ["attention", "pattern", "phase", "resource", "length", "95% interval", "R2", "note"]
    return text_table(header, rows, align="llllrrrl")
