"""`cab score`: the compositional index of results."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cab.cli.results_arguments import add_results_arguments, print_notes, selected_results
from cab.files.text_table import number, print_csv, text_table
from cab.scoring.statistics import ONE_SEED_MARK, Verdict

if TYPE_CHECKING:
    import pandas as pd

    from cab.scoring import Scores

EPILOG = """\
For results of the suite, K is printed first: the share of the gain of softmax attention over no attention that is
retained, in percent (see `cab suite report`). The index follows where at least five attentions have every metric.

The index of a task is the mean of its metrics, each normalized and with the sign changed if lower is better; task `all`
is the mean over tasks. An attention without a value for any metric has no index. low and high bound a 95% confidence
interval over seeds; they are empty for a single seed.

In the table, `>` marks a significant difference (95%, Holm's correction over all pairs) to the next attention, and `~`
an undecided one. `*` marks a result with a single seed. A dagger precedes an attention whose code has not passed
`cab verify` in the pattern (column `verified` of the CSV: yes, no, unknown).

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
    from cab.records.results import legend, verdicts
    from cab.scoring import benefit_of_attention, order_table, score
    from cab.scoring.index import COLUMNS

    results = selected_results(args)
    scores = score(results, normalization=args.normalization)
    if args.show == "index":
        verified = verdicts(scores.results)
        pairs = zip(scores.table["pattern"], scores.table["attention"], strict=True)
        table = scores.table[COLUMNS].assign(verified=[verified[pair] for pair in pairs])
    else:
        table = order_table(scores) if args.show == "pairwise" else benefit_of_attention(scores.table)
    if args.csv:
        print_csv(table)
        print_notes([*scores.notes, *_averaged_data_sets(scores)])
        return 0
    notes = scores.notes
    if args.show == "index":
        gains = _gain_text(results)  # with the probes, which have no index
        known = scores.table.dropna(subset=["index"]) if gains else scores.table
        patterns = [str(pattern) for pattern in known["pattern"].unique()]
        print("\n\n".join([*gains, *_index_texts(scores, patterns)]))
        notes = [note for note in notes if ": no index" not in note or note.startswith(tuple(patterns))]
    else:
        print(_plain_text(table))
    print_notes([*notes, *legend(scores.results)])
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
    return text_table(list(table.columns), rows, align=align)


def _gain_text(results: pd.DataFrame) -> list[str]:
    """Return the tables of K if the results contain any of the suite."""
    from cab.cli.suite_tables import gain_tables
    from cab.suite.cells import collect
    from cab.suite.check import invalid_cells
    from cab.suite.gain import suite_gains

    cells = collect(results["record"].dropna().drop_duplicates())
    has_results = any(cell.runs or cell.left_out for cell in cells)
    return [gain_tables(suite_gains(cells, invalid_cells()))] if has_results else []


def _index_texts(scores: Scores, patterns: Sequence[str]) -> list[str]:
    """Return one table per pattern, best attention first, each followed by the metrics of its tasks."""
    from cab.scoring import order_table

    signs = {Verdict.BETTER: ">", Verdict.WORSE: "<", Verdict.ONE_SEED: ""}
    order = order_table(scores)[["pattern", "task", "better", "worse", "verdict"]].itertuples(index=False, name=None)
    verdicts = {(*place,): signs.get(Verdict(verdict), "~") for *place, verdict in order}
    return [_pattern_text(scores, pattern, verdicts) for pattern in patterns]


def _pattern_text(scores: Scores, pattern: str, verdicts: Mapping[tuple[str, ...], str]) -> str:
    from cab.records import results
    from cab.records.verified import mark_unverified

    table = scores.table[scores.table["pattern"] == pattern]
    rows = {(row["task"], row["attention"]): row for row in table.to_dict("records")}
    average, *tasks = table["task"].unique()
    members = {task: _members(places) for (of, task), places in scores.members.items() if of == pattern}
    columns = [average, *tasks] if len(members) > 1 else tasks or [average]
    ranked = list(table.loc[table["task"] == average, "attention"])
    signs = [verdicts.get((pattern, average, *pair), "") for pair in itertools.pairwise(ranked)]
    verified = results.verdicts(scores.results)
    is_trained = bool((scores.results["hash"] != "").any())
    text = [
        [
            mark_unverified(name, verified[pattern, name]),
            sign,
            *(_cell(rows[(task, name)], is_trained=is_trained) for task in columns),
            _seeds(rows, columns, name),
        ]
        for name, sign in zip(ranked, [*signs, ""], strict=True)
    ]
    grid = text_table([pattern, "", *columns, "seeds"], text, align="llr")
    return "\n".join([grid, *(f"  {task}: {parts}" for task, parts in members.items())])


def _seeds(rows: dict[tuple[Any, Any], dict[Any, Any]], tasks: list[Any], name: str) -> str:
    """Return the smallest number of seeds of any index in the row."""
    return str(min((int(rows[(task, name)]["seeds"]) for task in tasks if rows[(task, name)]["seeds"]), default=0))


def _cell(row: dict[Any, Any], *, is_trained: bool) -> str:
    """Format an index with its interval; published results do not record their seeds."""
    text = number(row["index"])
    if row["seeds"] == 1 and is_trained:
        return text + ONE_SEED_MARK
    return text if math.isnan(row["low"]) else f"{text} [{number(row['low'])}, {number(row['high'])}]"
