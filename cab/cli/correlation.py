"""`cab correlation`: rank agreement of attentions between patterns, tasks, sets of results, or probes and tasks."""

from __future__ import annotations

import argparse
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.cli.results_arguments import add_results_arguments, print_notes, selected_results
from cab.files.text_table import number, print_csv, text_table

if TYPE_CHECKING:
    import pandas as pd

EPILOG = """\
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_results_arguments(parser)
    parser.add_argument("--probes", type=Path, metavar="CSV", help="probes.csv written by `cab leaderboard`")
    parser.add_argument("--csv", action="store_true", help="CSV: kind,pattern,a,b,pearson,shared,p_value,low,high,note")


def run(args: argparse.Namespace) -> int:
    import pandas as pd

    from cab.scoring import benchmark_correlation, pattern_correlation, score, task_correlation

    results = selected_results(args)
    if args.probes:
        return _probe_correlation(args, results)
    presets = list(dict.fromkeys(results["preset"]))
    if len(args.results) == len(presets) == 2:
        return _compare(args, [results[results["preset"] == preset] for preset in presets])
    scores = score(results, normalization=args.normalization)
    tables = [part(scores.table) for part in (pattern_correlation, benchmark_correlation, task_correlation)]
    table = pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)
    if args.csv:
        print_csv(table)
    else:
        print(_text(table))
    print_notes(scores.notes)
    return 0


def _probe_correlation(args: argparse.Namespace, results: pd.DataFrame) -> int:
    """Print the rank agreement of probes and tasks."""
    from cab.scoring import probe_agreement, read_probes, score

    scores = score(results, normalization=args.normalization)
    table = probe_agreement(read_probes(args.probes), scores.table)
    _print_agreement(table, args, reason="probes and tasks share fewer than three attentions in every pattern")
    print_notes(scores.notes)
    return 0


def _compare(args: argparse.Namespace, parts: Sequence[pd.DataFrame]) -> int:
    """Print the rank agreement of two sets of results."""
    from cab.scoring import rank_agreement, score

    scores = [score(part, normalization=args.normalization) for part in parts]
    table = rank_agreement(scores[0].table, scores[1].table)
    _print_agreement(table, args, reason="the two sets of results share no attention in a pattern and task")
    for each in scores:
        print_notes(each.notes)
    return 0


def _print_agreement(table: pd.DataFrame, args: argparse.Namespace, *, reason: str) -> None:
    if args.csv:
        print_csv(table)
    elif table.empty:
        print(f"nothing to compare: {reason}")
    else:
        print(_agreement_text(table))


def _agreement_text(table: pd.DataFrame) -> str:
    keys = [name for name in ("pattern", "probe", "task") if name in table]
    rows = []
    for row in table.to_dict("records"):
        numbers = [number(row["spearman"], 2), _interval(row), number(row["p_value"]), str(row["shared"])]
        rows.append([*(row[name] for name in keys), *numbers, row["disagree"], row["note"]])
    header = [*keys, "spearman", "95% interval", "p", "shared", "largest rank difference", "note"]
    return text_table(header, rows, align="l" * len(keys) + "rrrrll")


def _interval(row: Mapping[Hashable, Any]) -> str:
    return "-" if row["low"] != row["low"] else f"[{number(row['low'], 2)}, {number(row['high'], 2)}]"


def _text(table: pd.DataFrame) -> str:
    rows = []
    for row in table.to_dict("records"):
        pair = f"{row['a']} - {row['b']}"
        numbers = [number(row["pearson"], 2), _interval(row), number(row["p_value"]), str(row["shared"])]
        rows.append([row["pattern"] or "all", pair, *numbers, row["note"]])
    return text_table(["pattern", "pair", "pearson", "95% interval", "p", "shared", "note"], rows, align="llrrrrl")
