"""`cab correlation`: agreement of attentions between patterns and tasks.

Pearson correlation over shared attentions. Of K: between the core cells of the suite. Of compositional indices: between
patterns, between tasks, and between patterns and published accuracies on Long Range Arena (Figure 3a). Each has the
two-sided p-value of no correlation and a 95% confidence interval by Fisher's z. The correlation requires three shared
attentions; below five it is marked inconclusive.

Each source has its own rows: your results, the correlations that the paper's figures show, and those recomputed from
its printed indices. With --normalization, further ones are recomputed from the printed metrics.

examples:
  cab correlation results/paper --normalization official
  cab correlation results/local results/paper
  cab correlation results/core --csv
"""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING

from cab.cli.arguments import add_results_arguments, print_notes, selected_results
from cab.errors import UserError
from cab.files.text_table import print_csv
from cab.results.formats import interval, numbers, texts
from cab.results.table import Column, Row, Table

if TYPE_CHECKING:
    import pandas as pd


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_results_arguments(parser)
    parser.add_argument(
        "--csv",
        action="store_true",
        help="CSV: kind,pattern,a,b,pearson,shared,p_value,low,high,note,source,normalization",
    )


def run(args: argparse.Namespace) -> int:
    import pandas as pd

    from cab.results.correlation import (
        benchmark_correlation,
        cell_correlation,
        pattern_correlation,
        published_correlation,
        task_correlation,
    )
    from cab.results.index import RECOMPUTED, scores_by_source
    from cab.results.index_tables import no_score, notes_on
    from cab.results.load import INDEX, PUBLISHED, K
    from cab.results.retained import gains_table

    frame = selected_results(args)
    tables, notes = [], no_score(frame)
    if (frame["score"] == K).any():
        tables.append(cell_correlation(gains_table(frame)).assign(source="", normalization="", results=K))
    if (frame["score"] == INDEX).any():
        scored = scores_by_source(frame, normalization=args.normalization, tasks=args.task or ())
        notes += [] if scored else ["no index is printed; --normalization official recomputes it"]
        for scores in scored.values():
            notes += notes_on(scores)
            made = [make(scores.table) for make in (pattern_correlation, benchmark_correlation, task_correlation)]
            is_printed = scores.source == PUBLISHED
            stamps = {
                "source": RECOMPUTED if is_printed else scores.source,
                "normalization": scores.normalization,
                "results": "recomputed (printed indices)" if is_printed else scores.label,
            }
            tables += [table.assign(**stamps) for table in made if len(table)] or [made[0].assign(**stamps)]
            if is_printed:
                shown = pd.concat(made)[["kind", "pattern", "a", "b"]]
                tables.append(
                    published_correlation(shown).assign(source=PUBLISHED, normalization="", results=PUBLISHED)
                )
    if not tables:
        raise UserError(f"no scores to correlate: {'; '.join(notes)}")
    table = pd.concat(tables, ignore_index=True)
    if table.empty:
        notes.append("nothing to correlate: two patterns, or two tasks of a pattern, must have an index; name more")
    pairs = table.groupby(["kind", "pattern", "a", "b"], sort=False).ngroup()
    table = table.loc[pairs.sort_values(kind="stable").index]  # the correlations of a pair are adjacent
    if args.csv:
        print_csv(table.drop(columns="results"))
    elif len(table):
        print(_text(table))
    print_notes(notes)
    return 0


def _text(table: pd.DataFrame) -> str:
    intervals = map(functools.partial(interval, decimals=2), table["low"], table["high"])
    columns = [
        Column("pair", texts(table["a"] + " - " + table["b"])),
        *([Column("results", texts(table["results"]))] if (table["source"] != "").any() else []),
        Column("pearson", numbers(table["pearson"], 2)),
        Column("95% interval", texts(intervals)),
        Column("p", numbers(table["p_value"])),
        Column("shared", numbers(table["shared"], 0)),
        Column("note", texts(table["note"])),
    ]
    return Table([Row(pattern or "all") for pattern in table["pattern"]], columns, "pattern").to_text()
