"""`cab score`: the compositional index of results.

`cab suite report` prints K, the score of the suite. On generated data, an index requires five attentions.

The index of a task is the mean of its metrics, each normalized and with the sign changed if lower is better; task `all`
is the mean over tasks. An attention without a value for any metric has no index. low and high bound a 95% confidence
interval over seeds; they are empty for a single seed.

In the table, `>` marks a significant difference (95%, Holm's correction over all pairs) to the next attention, and `~`
an undecided one. `*` marks a result with a single seed. A dagger precedes an attention whose code has not passed
`cab verify` in the pattern (column `verified` of the CSV: yes, no, unknown). On the paper's scale, a double dagger
follows an attention with runs of other settings than the published ones, which the notes name.

examples:
  cab score
  cab score results/paper --normalization official --pattern NS
  cab score results/local --preset mini --show pairwise --csv
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cab.cli.arguments import add_results_arguments, print_notes, selected_results
from cab.files.disk import sanitize_text
from cab.files.text_table import number, print_csv, text_table
from cab.results.changed_settings import CHANGED_MARK, changed_settings
from cab.results.statistics import ONE_SEED_MARK, Verdict

if TYPE_CHECKING:
    import pandas as pd

    from cab.results.index import Scores

SIGNS = {Verdict.BETTER: ">", Verdict.WORSE: "<", Verdict.ONE_SEED: ""}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_results_arguments(parser)
    parser.add_argument(
        "--show",
        choices=("index", "pairwise", "ablation"),
        default="index",
        help="index (default); pairwise: difference of every two attentions and its significance over seeds; "
        "ablation: best efficient attention, softmax attention and no attention",
    )
    parser.add_argument("--csv", action="store_true", help="CSV: pattern,task,attention,index,low,high,seeds,verified")


def run(args: argparse.Namespace) -> int:
    from cab.records.results import legend, verdicts
    from cab.results.index import COLUMNS, benefit_of_attention, order_table, score

    results = selected_results(args)
    scores = score(results, normalization=args.normalization)
    if args.show == "index":
        verified = verdicts(scores.results)
        pairs = zip(scores.table["pattern"], scores.table["attention"], strict=True)
        table = scores.table[COLUMNS].assign(verified=[verified[pair] for pair in pairs])
    else:
        table = order_table(scores) if args.show == "pairwise" else benefit_of_attention(scores.table)
    notes = list(scores.notes)
    if args.csv:
        print_csv(table)
        for (pattern, task), places in scores.members.items():
            notes += [f"{pattern} {task} averages {_members(places)}"] if len(places) > 1 else []
    elif args.show == "index":
        print("\n\n".join(_index_texts(scores, is_official=args.normalization != "results")))
    else:
        print(_plain_text(table))
    print_notes(notes if args.csv else [*notes, *legend(scores.results)])
    return 0


def _members(places: dict[str, list[str]]) -> str:
    """Return the metrics that a task averages, grouped by place."""
    groups: dict[str, list[str]] = {}
    for place, metrics in places.items():
        groups.setdefault(", ".join(metrics), []).append(place)
    return "; ".join(f"{metrics} of {', '.join(names)}" for metrics, names in groups.items())


def _plain_text(table: pd.DataFrame) -> str:
    rows = [[number(x) if isinstance(x, float) else str(x) for x in row] for row in table.to_numpy()]
    align = "".join("r" if kind.kind == "f" else "l" for kind in table.dtypes)
    return text_table(list(table.columns), rows, align=align)


def _index_texts(scores: Scores, *, is_official: bool) -> Iterator[str]:
    """Yield one table per pattern, best attention first, each followed by the metrics of its tasks."""
    from cab.records.results import verdicts
    from cab.records.verified import mark_unverified
    from cab.results.index import order_table

    verified, order = verdicts(scores.results), order_table(scores)
    pairs = order[["pattern", "task", "better", "worse"]].itertuples(index=False, name=None)
    signs = {pair: SIGNS.get(Verdict(word), "~") for pair, word in zip(pairs, order["verdict"], strict=True)}
    runs = scores.results[["pattern", "attention", "record"]].dropna().itertuples(index=False, name=None)
    changed = {(pattern, name) for pattern, name, record in runs if is_official and changed_settings(record)}
    is_trained = bool((scores.results["hash"] != "").any())
    for pattern in scores.table["pattern"].unique():
        table = scores.table[scores.table["pattern"] == pattern]
        rows = {(row["task"], row["attention"]): row for row in table.to_dict("records")}
        average, *tasks = table["task"].unique()
        members = {task: _members(places) for (of, task), places in scores.members.items() if of == pattern}
        columns = [average, *tasks] if len(members) > 1 else tasks or [average]
        ranked = list(table.loc[table["task"] == average, "attention"])
        lines = []
        for name, following in itertools.zip_longest(ranked, ranked[1:]):
            cells = [rows[task, name] for task in columns]
            seeds = min((int(cell["seeds"]) for cell in cells if cell["seeds"]), default=0)
            mark = f" {CHANGED_MARK}" if (pattern, name) in changed else ""
            label = mark_unverified(name, verified[pattern, name]) + mark
            texts = (_cell(cell, is_trained=is_trained) for cell in cells)
            lines.append([label, signs.get((pattern, average, name, following), ""), *texts, seeds])
        grid = text_table([pattern, "", *columns, "seeds"], lines, align="llr")
        yield "\n".join([grid, *(sanitize_text(f"  {task}: {parts}") for task, parts in members.items())])


def _cell(row: Mapping[Any, Any], *, is_trained: bool) -> str:
    """Format an index with its interval; published results do not record their seeds."""
    text = number(row["index"])
    if row["seeds"] == 1 and is_trained:
        return text + ONE_SEED_MARK
    return text if math.isnan(row["low"]) else f"{text} [{number(row['low'])}, {number(row['high'])}]"
