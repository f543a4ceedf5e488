"""`cab correlation`: rank agreement of attentions between patterns, tasks, sets of results, or probes and tasks.

Pearson correlation of compositional indices between patterns, between tasks, and between patterns and published
accuracies on Long Range Arena (Figure 3a), over shared attentions; with the two-sided p-value of no correlation and a
95% confidence interval by Fisher's z. The correlation requires three shared attentions; below five it is marked
inconclusive.

With two folders of results from different presets: Spearman's correlation of the indices per pattern and task, and the
attention with the largest difference in rank. With --probes: Spearman's correlation of the accuracy in each probe with
the index of each task of the same pattern.

examples:
  cab correlation results/paper --normalization official
  cab correlation results/local --preset mini --csv
  cab correlation results/mini results/paper
  cab correlation results/mini --probes results/probes/probes.csv
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cab.cli.arguments import add_results_arguments, print_notes, results_path, selected_results
from cab.files.text_table import number, print_csv, text_table

if TYPE_CHECKING:
    import pandas as pd


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_results_arguments(parser)
    parser.add_argument("--probes", type=results_path, metavar="CSV", help="probes.csv written by `cab leaderboard`")
    parser.add_argument("--csv", action="store_true", help="CSV: kind,pattern,a,b,pearson,shared,p_value,low,high,note")


def run(args: argparse.Namespace) -> int:
    from cab.scoring.correlation import probe_agreement, rank_agreement, read_probes
    from cab.scoring.index import score

    results = selected_results(args)
    presets = list(results["preset"].unique())
    sets = [results]
    if not args.probes and len(args.results) == len(presets) == 2:
        sets = [results[results["preset"] == preset] for preset in presets]
    scores = [score(table, normalization=args.normalization) for table in sets]
    tables = [of_set.table for of_set in scores]
    if args.probes:
        table = probe_agreement(read_probes(args.probes), tables[0])
        reason = "probes and tasks share fewer than three attentions in every pattern"
    elif len(sets) == 2:
        table = rank_agreement(*tables)
        reason = "the two sets of results share no attention in a pattern and task"
    else:
        table, reason = _correlations(tables[0]), ""
    if args.csv:
        print_csv(table)
    elif reason and table.empty:
        print(f"nothing to compare: {reason}")
    else:
        print(_agreement_text(table) if reason else _correlation_text(table))
    for of_set in scores:
        print_notes(of_set.notes)
    return 0


def _correlations(scores: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    from cab.scoring.correlation import benchmark_correlation, pattern_correlation, task_correlation

    tables = [correlate(scores) for correlate in (pattern_correlation, benchmark_correlation, task_correlation)]
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)


def _agreement_text(table: pd.DataFrame) -> str:
    keys = [name for name in ("pattern", "probe", "task") if name in table]
    rows = [
        [*(row[name] for name in keys), *_numbers(row, "spearman"), row["disagree"], row["note"]]
        for row in table.to_dict("records")
    ]
    header = [*keys, "spearman", "95% interval", "p", "shared", "largest rank difference", "note"]
    return text_table(header, rows, align="l" * len(keys) + "rrrrll")


def _correlation_text(table: pd.DataFrame) -> str:
    rows = [
        [row["pattern"] or "all", f"{row['a']} - {row['b']}", *_numbers(row, "pearson"), row["note"]]
        for row in table.to_dict("records")
    ]
    return text_table(["pattern", "pair", "pearson", "95% interval", "p", "shared", "note"], rows, align="llrrrrl")


def _numbers(row: Any, correlation: str) -> list[str]:
    interval = "-" if row["low"] != row["low"] else f"[{number(row['low'], 2)}, {number(row['high'], 2)}]"
    return [number(row[correlation], 2), interval, number(row["p_value"]), str(row["shared"])]
