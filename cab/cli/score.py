"""`cab score`: the compositional index of results."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from typing import TYPE_CHECKING, Any

from cab.cli.results_arguments import add_results_arguments, print_notes, selected_results
from cab.cli.text_table import number, text_table
from cab.files.sanitize import sanitize_table

if TYPE_CHECKING:
    import pandas as pd

    from cab.scoring import Scores

EPILOG = """\
The index of a task is the mean of its metrics, each normalized and with the sign changed if lower is better; task `all`
is the mean over tasks. An attention without a value for any metric has no index. low and high bound a 95% confidence
interval over seeds; they are empty for a single seed.

In the table, `>` marks a significant difference (95%) to the next attention, `~` one that is not significant, and a
dagger an attention whose code has not passed `cab verify` in the pattern (column `verified` of the CSV: yes, no,
unknown).

examples:
  cab score
  cab score results/paper --normalization official --pattern NS
  cab score results/local --preset mini --show pairwise --csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
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
    from cab.records.verification_status import legend, verdicts
    from cab.scoring import benefit_of_attention, order_table, score
    from cab.scoring.index import COLUMNS

    scores = score(selected_results(args), normalization=args.normalization)
    if args.show == "index":
        verified = verdicts(scores.results)
        pairs = zip(scores.table["pattern"], scores.table["attention"], strict=True)
        table = scores.table[COLUMNS].assign(verified=[verified[pair] for pair in pairs])
    else:
        table = order_table(scores) if args.show == "pairwise" else benefit_of_attention(scores.table)
    if args.csv:
        sanitize_table(table).to_csv(sys.stdout, index=False, float_format="%.6f", lineterminator="\n")
        print_notes([*scores.notes, *_averaged_data_sets(scores)])
        return 0
    print(_index_text(scores) if args.show == "index" else _plain_text(table))
    print_notes([*scores.notes, *legend(scores.results)])
    return 0


def _averaged_data_sets(scores: Scores) -> list[str]:
    return [
        f"{pattern} {task} averages {_members(places)}"
        for (pattern, task), places in scores.members.items()
        if len(places) > 1
    ]


def _members(places: dict[str, list[str]]) -> str:
    """Return the metrics that a task averages, grouped by place."""
    groups: dict[str, list[str]] = {}
    for place, metrics in places.items():
        groups.setdefault(", ".join(metrics), []).append(place)
    return "; ".join(f"{metrics} of {', '.join(names)}" for metrics, names in groups.items())


def _plain_text(table: pd.DataFrame) -> str:
    rows = [
        [number(cell) if isinstance(cell, float) else str(cell) for cell in row]
        for row in table.itertuples(index=False, name=None)
    ]
    align = "".join("r" if kind.kind == "f" else "l" for kind in table.dtypes)
    header = ["significant" if column == "resolved" else column for column in table.columns]
    return text_table(header, rows, align=align)


def _index_text(scores: Scores) -> str:
    """Return one table per pattern, best attention first, each followed by the metrics of its tasks."""
    return "\n\n".join(_pattern_text(scores, str(pattern)) for pattern in scores.table["pattern"].unique())


def _pattern_text(scores: Scores, pattern: str) -> str:
    from cab.records.verification_status import mark_unverified, verdicts

    table = scores.table[scores.table["pattern"] == pattern]
    rows = {(row["task"], row["attention"]): row for row in table.to_dict("records")}
    average, *tasks = table["task"].unique()
    members = {task: _members(places) for (of, task), places in scores.members.items() if of == pattern}
    columns = [average, *tasks] if len(members) > 1 else tasks or [average]
    ranked = list(table.loc[table["task"] == average, "attention"])
    signs = [_sign(scores, pattern, average, *pair) for pair in itertools.pairwise(ranked)]
    verified = verdicts(scores.results)
    text = [
        [
            mark_unverified(name, verified[pattern, name]),
            sign,
            *(_cell(rows[(task, name)]) for task in columns),
            _seeds(rows, columns, name),
        ]
        for name, sign in zip(ranked, [*signs, ""], strict=True)
    ]
    grid = text_table([pattern, "", *columns, "seeds"], text, align="ll" + "r" * (len(columns) + 1))
    return "\n".join([grid, *(f"  {task}: {parts}" for task, parts in members.items())])


def _seeds(rows: dict[tuple[Any, Any], dict[Any, Any]], tasks: list[Any], name: str) -> str:
    """Return the smallest number of seeds of any index in the row."""
    return str(min((int(rows[(task, name)]["seeds"]) for task in tasks if rows[(task, name)]["seeds"]), default=0))


def _cell(row: dict[Any, Any]) -> str:
    text = number(row["index"])
    return text if math.isnan(row["low"]) else f"{text} [{number(row['low'])}, {number(row['high'])}]"


def _sign(scores: Scores, pattern: str, task: str, better: str, worse: str) -> str:
    """Return ``>`` for a significant difference, ``~`` for one that is not, or nothing if it is unknown."""
    from cab.scoring import compare

    return {"yes": ">", "no": "~", "unknown": ""}[compare(scores, pattern, task, better, worse).resolved]
