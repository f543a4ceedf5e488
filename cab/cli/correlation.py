"""`cab correlation`: agreement of attentions between patterns and tasks.

Pearson correlation of compositional indices between patterns, between tasks, and between patterns and published
accuracies on Long Range Arena (Figure 3a), over shared attentions. Each has the two-sided p-value of no correlation and
a 95% confidence interval by Fisher's z. The correlation requires three shared attentions; below five it is marked
inconclusive.

examples:
  cab correlation results/paper --normalization official
  cab correlation results/local --preset mini --csv
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cab.cli.arguments import add_results_arguments, print_notes, selected_results
from cab.files.text_table import number, print_csv, text_table

if TYPE_CHECKING:
    import pandas as pd


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_results_arguments(parser)
    parser.add_argument("--csv", action="store_true", help="CSV: kind,pattern,a,b,pearson,shared,p_value,low,high,note")


def run(args: argparse.Namespace) -> int:
    import pandas as pd

    from cab.results.correlation import benchmark_correlation, pattern_correlation, task_correlation
    from cab.results.index import score

    scores = score(selected_results(args), normalization=args.normalization)
    correlations = [
        correlate(scores.table) for correlate in (pattern_correlation, benchmark_correlation, task_correlation)
    ]
    table = pd.concat([table for table in correlations if len(table)] or correlations[:1], ignore_index=True)
    if args.csv:
        print_csv(table)
    else:
        print(_text(table))
    print_notes(scores.notes)
    return 0


def _text(table: pd.DataFrame) -> str:
    rows = []
    for row in table.to_dict("records"):
        interval = "-" if row["low"] != row["low"] else f"[{number(row['low'], 2)}, {number(row['high'], 2)}]"
        numbers = [number(row["pearson"], 2), interval, number(row["p_value"]), str(row["shared"])]
        rows.append([row["pattern"] or "all", f"{row['a']} - {row['b']}", *numbers, row["note"]])
    return text_table(["pattern", "pair", "pearson", "95% interval", "p", "shared", "note"], rows, align="llrrrrl")
