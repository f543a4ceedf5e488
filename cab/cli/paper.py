"""`cab paper`: the published tables, recomputed and compared with this implementation."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.cli.arguments import add_accept_code, add_pattern, print_notes, results_path, valid_results
from cab.cli.terminal import print_note
from cab.errors import UserError
from cab.files.disk import check_writable
from cab.files.text_table import number, print_csv, print_rows, text_table
from cab.results.published import rows
from cab.results.rounding import Interval

if TYPE_CHECKING:
    import pandas as pd

    from cab.analysis.subject import Subject

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
COUNT = ("pattern", "backbone", "attention", "params")
OF_INDICES = ("6", "3", "12")
FORMATS = ("text", "csv", "markdown", "latex")
SUMMARIES = {
    "6": "compositional index of each task",
    "7": "mean and standard deviation of each metric, NS",
    "8": "mean and standard deviation of each metric, CS",
    "9": "mean and standard deviation of each metric, NC",
    "10": "mean and standard deviation of each metric, CC",
    "12": "index of the best efficient attention, of softmax and of no attention, NS",
}
"""Content of the tables that follow from Table 3 (:mod:`cab.results.summary_tables`)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="SUBCOMMAND")
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
        ("differences", "the cells of Table 3, their configuration under preset=paper, and known differences"),
    ):
        table = verbs.add_parser(verb, help=text, description=text)
        table.add_argument("--csv", action="store_true", help="print comma-separated values instead of a table")
    for name, text in {"3": "raw metrics and average index", **SUMMARIES}.items():
        text = f"Table {name} with your results: {text}"
        about = (
            f"{text}. `cab run suite=paper` runs its cells; without RESULTS, the published numbers are printed alone."
        )
        table = verbs.add_parser(f"table{name}", help=text, description=about)
        table.add_argument("results", nargs="*", type=results_path, metavar="RESULTS", help="folders of results")
        add_accept_code(table)
        table.add_argument("--format", choices=FORMATS, default="text", help="output format (default: text)")
        add_pattern(table, "use only results of these patterns (NS, CS, NC, CC)", nargs="+")
        table.add_argument("--preset", help="use only results of this preset")
    text = "the parameter counts of preset paper, and the published ones"
    counts = verbs.add_parser("params", help=text, description=text)
    names = sorted({line["backbone"] for line in _published_counts()})
    counts.add_argument("--backbone", choices=names, metavar="NAME", help=f"one of {', '.join(names)} (default: all)")
    counts.add_argument("--csv", action="store_true", help=f"CSV: {','.join(COUNT)}")
    for verb, text in (
        ("gradients", "the distribution of dL/ds per layer with its bounds, and gradient norms over training steps"),
        ("dilution", "the share of attention on the nearest tokens per layer, and the area under this curve"),
    ):
        analysis = verbs.add_parser(verb, help=text, description=f"Analyze a network as TransNormer does: {text}.")
        _add_analysis_arguments(analysis, has_steps=verb == "gradients")


def _add_analysis_arguments(parser: argparse.ArgumentParser, *, has_steps: bool) -> None:
    parser.add_argument(
        "subject",
        nargs="+",
        metavar="RECORD.json | KEY=VALUE",
        help="record file with trained weights next to it, or overrides of `cab run` for an untrained network: task=lm "
        "dataset=synthetic attention=linear pattern=CS preset=mini",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder for the CSV files")
    parser.add_argument("--rows", type=int, default=4, metavar="N", help="training examples (default: 4)")
    if has_steps:
        parser.add_argument("--steps", type=int, default=0, metavar="N", help="training steps (default: 0)")
    parser.add_argument("--data-root", metavar="FOLDER", help="data folder (default: that of the record)")


def run(args: argparse.Namespace) -> int:
    if args.verb == "taxonomy":
        from cab.results.taxonomy import TaxonomyRow, taxonomy

        print_rows([TaxonomyRow._fields, *taxonomy()], as_csv=args.csv)
    elif args.verb.startswith("table"):
        _print_table(args, args.verb.removeprefix("table"))
    elif args.verb == "differences":
        from cab.results.published_cells import PublishedCell, published_cells

        print_rows([PublishedCell._fields, *published_cells()], as_csv=args.csv)
    elif args.verb == "params":
        _params(args.backbone, as_csv=args.csv)
    elif args.verb in ("gradients", "dilution"):
        _analyze(args)
    else:
        _audit(args.normalization, as_csv=args.csv)
    return 0


def _print_table(args: argparse.Namespace, name: str) -> None:
    import pandas as pd

    from cab.records.results import COLUMNS
    from cab.results.selection import REHEARSAL, REHEARSAL_NOTE, select
    from cab.results.summary_tables import summary
    from cab.results.table import Table
    from cab.results.table3 import side_by_side, tables

    results = valid_results(args)[0] if args.results else pd.DataFrame(columns=list(COLUMNS))
    if args.results:
        results = select(results, preset=args.preset, patterns=args.pattern)
    frame = side_by_side(results)
    if args.pattern:
        frame = frame[frame["pattern"].isin(args.pattern)]
    is_rehearsal = (frame["data"] == REHEARSAL).any()
    frame = frame if name == "3" else summary(frame, name)
    if args.format == "csv":
        print_csv(frame)
        return
    if name == "3":
        shown = list(tables(frame, narrow=args.format == "text"))
    else:
        notes = [REHEARSAL_NOTE] if is_rehearsal else []
        shown = [Table.of(frame, decimals=3, caption=f"Table {name}: {SUMMARIES[name]}", remarks=notes)]
    if args.format == "text":
        print("\n\n".join(table.to_text() for table in shown))
        print_notes(note for table in shown for note in table.notes)
    else:
        print("\n\n".join(table.to_latex() if args.format == "latex" else table.to_markdown() for table in shown))


def _audit(normalization: str, *, as_csv: bool) -> None:
    from cab.results.audit import COLUMNS, audit
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
    from cab.results.rounding import VERDICTS

    rows = []
    for printed, title in TABLES.items():
        for name in audits if printed in OF_INDICES else list(audits)[:1]:
            counts = audits[name].loc[audits[name]["table"] == printed, "verdict"].value_counts()
            shown = name if printed in OF_INDICES else ""
            rows.append([printed, title, shown, *(counts.get(verdict, 0) for verdict in VERDICTS)])
    return text_table(["table", "content", "normalization", *VERDICTS], rows, align="lllrrrr")


def _contradictions(table: pd.DataFrame) -> str:
    from cab.results.rounding import CONTRADICTS

    rows = []
    for row in table[table["verdict"] == CONTRADICTS].to_dict("records"):
        decimals = max(len(row["printed"].partition(".")[2]), 3)
        recomputed, low, high = (number(row[name], decimals) for name in ("recomputed", "low", "high"))
        names = [row[name] for name in ("table", "pattern", "task", "attention", "printed")]
        rows.append([*names, recomputed, f"{low} .. {high}", row["note"]])
    header = ["table", "pattern", "task", "attention", "printed", "recomputed", "possible range", "note"]
    return text_table(header, rows, align="llllrrrl")


def _published_counts() -> list[dict[str, str]]:
    return [*rows("parameters.csv"), *rows("parameters_transnormer.csv")]


def _params(backbone: str | None, *, as_csv: bool) -> None:
    from cab.results.parameters import count_parameters

    lines = [line for line in _published_counts() if backbone in (None, line["backbone"])]
    published = {(x["pattern"], x["backbone"], x["attention"]): float(x["params_millions"]) for x in lines}
    counts = count_parameters(published)
    if as_csv:
        print_rows([COUNT, *([*cell, count] for cell, count in counts.items())], as_csv=True)
        return
    shown = []
    for cell, count in counts.items():
        printed = f"{published[cell]:.2f}"
        shown.append([*cell, f"{count:,}", f"{printed} M", _remark(count / 1e6, printed)])
    print_rows([[*COUNT, "published", ""], *shown], as_csv=False, align="lllrrl")
    if len(counts) < len(published):
        print_note(f"{len(published) - len(counts)} published counts omitted: backbone or attention not registered")


def _remark(millions: float, printed: str) -> str:
    """Compare a count with the printed one, which may be rounded or truncated."""
    if f"{millions:.2f}" == printed:
        return ""
    low, high = Interval.printed(printed)
    return "agrees, truncated in print" if low <= millions < high else "differs"


def _analyze(args: argparse.Namespace) -> None:
    if args.rows < 1 or getattr(args, "steps", 0) < 0:
        raise UserError(f"--rows must be at least 1 and --steps at least 0, got {args.rows} and {args.steps}")
    if args.out is not None:
        check_writable(args.out, "--out")
    from cab.analysis.subject import subject_of

    subject = subject_of(args.subject, args.data_root)
    print(subject.title)
    {"gradients": _gradients, "dilution": _dilution}[args.verb](subject, args)


def _dilution(subject: Subject, args: argparse.Namespace) -> None:
    from cab.analysis.dilution import dilution

    curves = dilution(subject, rows=args.rows)
    print(text_table(["layer", "area"], [[curve.path, f"{curve.area:.3f}"] for curve in curves], align="lr"))
    rows = [
        {"layer": curve.path, "share_of_neighbors": share / len(curve.mass), "share_of_attention": mass}
        for curve in curves
        for share, mass in enumerate(curve.mass.tolist(), start=1)
    ]
    _write(args.out, "dilution", rows)


def _gradients(subject: Subject, args: argparse.Namespace) -> None:
    from cab.analysis.gradients import QUANTILES, norms_over_training, relative_deviation, score_gradients

    norms = norms_over_training(subject, args.steps) if args.steps else []
    layers = score_gradients(subject, rows=args.rows)
    columns = [*QUANTILES, "smallest_score", "bound_softmax", "bound_linear", "bound_norm"]
    texts = [[str(row["layer"]), *(f"{row[c]:.2e}" if c in row else "-" for c in columns)] for row in layers]
    print(text_table(["layer", *columns], texts, align="lr"))
    _write(args.out, "gradients", layers)
    if norms:
        names = [name for name in norms[0] if name not in ("step", "loss")]
        variations = [[name, f"{relative_deviation([row[name] for row in norms]):.3f}"] for name in names]
        print(f"\ngradient norm over {len(norms)} steps:")
        print(text_table(["parameters", "SD / mean"], variations, align="lr"))
        _write(args.out, "norms", norms)


def _write(folder: Path | None, name: str, table: Sequence[Mapping[str, Any]]) -> None:
    if folder is not None:
        import pandas as pd

        from cab.results.table import write_csv

        write_csv(pd.DataFrame(table), folder / f"{name}.csv")
