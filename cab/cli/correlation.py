"""`cab correlation`: correlation of scores between patterns, tasks, presets or probes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.cli.results_arguments import add_results_arguments, print_notes, selected_results
from cab.cli.text_table import number, text_table
from cab.files.sanitize import sanitize_table

if TYPE_CHECKING:
    import pandas as pd

EPILOG = """\
By default: Pearson correlation of the compositional indices of the attentions that two patterns (or two tasks) share,
and of each pattern with published Long Range Arena accuracies (Figure 3a). Each has a p-value and a 95% confidence
interval (Fisher's z). With fewer than three attentions no correlation is reported; with fewer than five the note says
`too few`.

Two folders with different presets: Spearman correlation of the indices between the presets, for each pattern and task,
and the attention whose ranks differ most.

With --probes: Spearman correlation of the accuracy in each probe with the index of each task of the same pattern.

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
    parser.add_argument(
        "--csv", action="store_true", help="print CSV: kind,pattern,a,b,pearson,shared,p_value,low,high,note"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit status."""
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
        sanitize_table(table).to_csv(sys.stdout, index=False, float_format="%.6f", lineterminator="\n")
    else:
        print(_text(table))
    print_notes(scores.notes)
    return 0


def _probe_correlation(args: argparse.Namespace, results: pd.DataFrame) -> int:
    """Correlate probes with tasks."""
    from cab.scoring import probe_agreement, read_probes, score

    scores = score(results, normalization=args.normalization)
    table = probe_agreement(read_probes(args.probes), scores.table)
    _print_agreement(table, args, nothing="the probes and tasks have fewer than three attentions in common")
    print_notes(scores.notes)
    return 0


def _compare(args: argparse.Namespace, parts: Sequence[pd.DataFrame]) -> int:
    """Correlate the ranks of attentions in two sets of results."""
    from cab.scoring import rank_agreement, score

    scores = [score(part, normalization=args.normalization) for part in parts]
    table = rank_agreement(scores[0].table, scores[1].table)
    _print_agreement(table, args, nothing="the two sets of results have no attention, pattern and task in common")
    for each in scores:
        print_notes(each.notes)
    return 0


def _print_agreement(table: pd.DataFrame, args: argparse.Namespace, *, nothing: str) -> None:
    if args.csv:
        sanitize_table(table).to_csv(sys.stdout, index=False, float_format="%.6f", lineterminator="\n")
    elif table.empty:
        print(f"nothing to compare: {nothing}")
    else:
        print(_agreement_text(table))


def _agreement_text(table: pd.DataFrame) -> str:
    keys = [name for name in ("pattern", "probe", "task") if name in table]
    rows = []
    for row in table.to_dict("records"):
        numbers = [number(row["spearman"], 2), _interval(row), number(row["p_value"]), str(row["shared"])]
        rows.append([*(row[name] for name in keys), *numbers, row["disagree"], row["note"]])
    header = [*keys, "spearman", "95% interval", "p", "attentions", "largest rank difference", "note"]
    return text_table(header, rows, align="l" * len(keys) + "rrrrll")


def _interval(row: Mapping[Hashable, Any]) -> str:
    return "-" if row["low"] != row["low"] else f"[{number(row['low'], 2)}, {number(row['high'], 2)}]"


def _text(table: pd.DataFrame) -> str:
    rows = []
    for row in table.to_dict("records"):
        pair = f"{row['a']} - {row['b']}"
        numbers = [number(row["pearson"], 2), _interval(row), number(row["p_value"]), str(row["shared"])]
        rows.append([row["pattern"] or "patterns", pair, *numbers, row["note"]])
    header = ["kind", "pair", "pearson", "95% interval", "p", "attentions", "note"]
    return text_table(header, rows, align="llrrrrl")
