"""`cab paper`: the published tables, recomputed and compared with this implementation."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from cab.files.text_table import number, print_csv, print_rows, text_table

if TYPE_CHECKING:
    import pandas as pd

EPILOG = """\
Recomputes, from the raw metrics of Table 3: indices of tasks (Table 6) and averages (Table 3), means and standard
deviations (Tables 7-10), and the benefit of attention (Table 12); and efficiency lengths (Table 11) from the published
costs. A number agrees (indices and R2 within 0.0015), is explained by rounding (within the range that the printed
digits allow), or contradicts.

examples:
  cab paper audit
  cab paper audit --normalization paper --csv
"""
TABLES = {
    "6": "index of a task",
    "3": "index, average over tasks",
    "7": "mean and standard deviation, NS",
    "8": "mean and standard deviation, CS",
    "9": "mean and standard deviation, NC",
    "10": "mean and standard deviation, CC",
    "script": "corrected constants of the script",
    "11": "efficiency length",
    "12": "benefit of attention",
}
OF_INDICES = ("6", "3", "12")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True)
    audit = verbs.add_parser(
        "audit",
        help="recompute the published tables from the published raw metrics",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    audit.add_argument(
        "--normalization",
        default="official",
        metavar="N",
        help="normalization of the indices: official (default), paper or results; the summary includes all three",
    )
    audit.add_argument(
        "--csv", action="store_true", help="CSV: table,pattern,task,attention,printed,recomputed,low,high,verdict"
    )
    for verb, text in (
        ("taxonomy", "the complexity claims of Table 13, and the verdict of `cab verify` on each"),
        ("table3", "the cells of Table 3, their configuration under preset=paper, and known differences"),
    ):
        table = verbs.add_parser(verb, help=text, description=text)
        table.add_argument("--csv", action="store_true", help="print comma-separated values instead of a table")


def run(args: argparse.Namespace) -> int:
    if args.verb == "taxonomy":
        from cab.paper.taxonomy import TaxonomyRow, taxonomy

        print_rows([TaxonomyRow._fields, *taxonomy()], as_csv=args.csv)
    elif args.verb == "table3":
        from cab.paper.published_cells import PublishedCell, published_cells

        print_rows([PublishedCell._fields, *published_cells()], as_csv=args.csv)
    else:
        _audit(args.normalization, as_csv=args.csv)
    return 0


def _audit(normalization: str, *, as_csv: bool) -> None:
    from cab.paper.audit import COLUMNS, audit
    from cab.results.normalization import NORMALIZATIONS

    table = audit(normalization=normalization)
    if as_csv:
        print_csv(table[COLUMNS])
        return
    others = {name: audit(normalization=name) for name in NORMALIZATIONS if name != normalization}
    print(_summary({normalization: table, **others}))
    print(f"\nContradictions (indices with normalization {normalization}):\n")
    print(_contradictions(table))


def _summary(audits: dict[str, pd.DataFrame]) -> str:
    from cab.paper.rounding import VERDICTS

    rows = []
    for printed, title in TABLES.items():
        for name in audits if printed in OF_INDICES else list(audits)[:1]:
            counts = audits[name].loc[audits[name]["table"] == printed, "verdict"].value_counts()
            shown = name if printed in OF_INDICES else ""
            rows.append([printed, title, shown, *(counts.get(verdict, 0) for verdict in VERDICTS)])
    return text_table(["table", "content", "normalization", *VERDICTS], rows, align="lllrrrr")


def _contradictions(table: pd.DataFrame) -> str:
    from cab.paper.rounding import CONTRADICTS

    rows = []
    for row in table[table["verdict"] == CONTRADICTS].to_dict("records"):
        decimals = max(len(row["printed"].partition(".")[2]), 3)
        recomputed, low, high = (number(row[name], decimals) for name in ("recomputed", "low", "high"))
        names = [row[name] for name in ("table", "pattern", "task", "attention", "printed")]
        rows.append([*names, recomputed, f"{low} .. {high}", row["note"]])
    header = ["table", "pattern", "task", "attention", "printed", "recomputed", "possible range", "note"]
    return text_table(header, rows, align="llllrrrl")
