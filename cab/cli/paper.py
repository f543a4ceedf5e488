"""`cab paper`: the published tables with own values, recomputed, and analyses of gradients and attention.

TABLE is a published table or figure of CAB, TransNormer, LRA or Informer; `cab paper list` lists them. It is printed
with your own values, from results or a file of costs, or from the configuration and the networks of preset `paper`.

examples:
  cab paper table3 results/local
  cab paper table11 results/paper/efficiency_cost.csv
  cab paper informer results/reproduced --format latex
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.cli.arguments import add_accept_code, add_pattern, print_notes, results_path, valid_results
from cab.errors import UserError
from cab.files.disk import check_writable
from cab.files.text_table import counted, number, print_csv, print_rows, text_table
from cab.results.guards import select
from cab.results.published import READS_COSTS, READS_NORMS, READS_RESULTS, PaperTable, paper_tables
from cab.results.table import write_csv

if TYPE_CHECKING:
    import pandas as pd

    from cab.analysis.subject import AnalyzedNetwork

EPILOG = """\
Recomputes, from the raw metrics of Table 3: indices of tasks (Table 6) and averages (Table 3), means and standard
deviations (Tables 7-10), and the benefit of attention (Table 12); and efficiency lengths (Table 11) from the published
costs. A number agrees (indices and R2 within 0.0015), is explained by rounding (within the range that the printed
digits allow), or contradicts.

examples:
  cab paper audit
  cab paper audit --normalization paper --csv
"""
AUDITED_TABLES = {
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
FORMATS = ("text", "csv", "markdown", "latex")
SOURCES_OF_OWN = {
    READS_RESULTS: ("RESULTS", "folders of results, records or CSV files"),
    READS_COSTS: ("COSTS", "file of `cab efficiency --out`"),
    READS_NORMS: ("NORMS", "files norms.csv of `cab paper gradients --out`"),
}
"""What a table reads for the own values."""


class _WithoutTables(argparse.RawDescriptionHelpFormatter):
    """Help that leaves the tables to `cab paper list`; completion has them."""

    def _iter_indented_subactions(self, action: argparse.Action) -> Generator[argparse.Action, None, None]:
        yield from (one for one in super()._iter_indented_subactions(action) if one.dest not in paper_tables())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = _WithoutTables
    verbs = parser.add_subparsers(dest="verb", metavar="TABLE | SUBCOMMAND")
    verbs.add_parser("list", help="list the tables and figures (default)")
    for paper_table in paper_tables().values():
        _add_table(verbs, paper_table)
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
        "--csv", action="store_true", help="CSV: table,pattern,task,attention,printed,recomputed,low,high,agreement"
    )
    for verb, text in (
        ("gradients", "the distribution of dL/ds per layer with its bounds, and gradient norms over training steps"),
        ("dilution", "the share of attention on the nearest tokens per layer, and the area under this curve"),
    ):
        analysis = verbs.add_parser(verb, help=text, description=f"Analyze a network as TransNormer does: {text}.")
        _add_analysis_arguments(analysis, has_steps=verb == "gradients")


def _add_table(verbs: Any, table: PaperTable) -> None:
    about = "."
    if table.reads:
        about = ", alongside your own values. Without any, the published ones are printed alone."
    parser = verbs.add_parser(table.name, help=table.title, description=table.title + about)
    if table.reads:
        metavar, text = SOURCES_OF_OWN[table.reads]
        parser.add_argument("results", nargs="*", type=results_path, metavar=metavar, help=text)
    parser.add_argument("--format", choices=FORMATS, default="text", help="output format (default: text)")
    if table.reads == READS_RESULTS:
        add_accept_code(parser)
        add_pattern(parser, "use only results of these patterns (NS, CS, NC, CC)", nargs="+")
        parser.add_argument("--preset", help="use only results of this preset")


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
        text = "training steps, before the gradients of scores are measured (default: 0)"
        parser.add_argument("--steps", type=int, default=0, metavar="N", help=text)
    parser.add_argument("--data-root", metavar="FOLDER", help="data folder (default: that of the record)")


def run(args: argparse.Namespace) -> int:
    if args.verb in paper_tables():
        _print_table(paper_tables()[args.verb], args)
    elif args.verb in (None, "list"):
        rows = [(name, table.title) for name, table in paper_tables().items()]
        print_rows([("table", "content"), *rows], as_csv=False)
    elif args.verb in ("gradients", "dilution"):
        _analyze(args)
    else:
        _audit(args.normalization, as_csv=args.csv)
    return 0


def _print_table(table: PaperTable, args: argparse.Namespace) -> None:
    from cab.results.comparison import NO_RESULTS, apart, compared, formatted, stored_means

    results, stored, files = NO_RESULTS, NO_RESULTS, []
    if table.reads == READS_RESULTS and args.results:
        chosen = {"preset": args.preset, "patterns": args.pattern}
        stored = stored_means(table, args.results)
        results = valid_results(args, is_optional=not stored.empty).frame
        if results.empty:
            stored = select(stored, **chosen)
        else:
            with_records = {str(Path(file).parent) for file in results[results["task"] == "lra"]["file"]}
            stored = stored[~stored["folder"].isin(with_records)]  # whose means the file repeats
            stored = stored[stored["preset"] == args.preset] if args.preset else stored
            results = select(results, **chosen)
    elif table.reads:
        files = args.results
    frame = compared(table, results, files)
    if table.reads == READS_RESULTS and args.pattern and "pattern" in frame:
        frame = frame[frame["pattern"].isin(args.pattern)]
    aside, left_out = apart(table, results, stored)
    if args.format == "csv":
        print_csv(frame)
        print_notes([*left_out, *(f"{each.caption}; left out of the CSV" for each in aside)])
        return
    text, notes = formatted(table, frame, aside, args.format, is_joined=not table.reads or bool(args.results))
    print(text)
    if table.source == "table3" and args.results and frame["own"].isna().all():
        notes = [
            "no given result completes a value of Table 3; `cab run suite=paper --dry-run` lists its runs",
            *notes,
        ]
    print_notes([*notes, *left_out])


def _audit(normalization: str, *, as_csv: bool) -> None:
    from cab.results.audit import AUDIT_COLUMNS, audit
    from cab.results.normalization import NORMALIZATIONS

    table = audit(normalization=normalization)
    if as_csv:
        print_csv(table[AUDIT_COLUMNS])
        return
    others = {name: audit(normalization=name) for name in sorted(NORMALIZATIONS, reverse=True) if name != normalization}
    print(_summary({normalization: table, **others}))
    print(f"\nContradictions (indices with normalization {normalization}):\n")
    print(_contradictions(table))


def _summary(audits: dict[str, pd.DataFrame]) -> str:
    from cab.results.audit import AGREEMENTS

    rows = []
    for printed, title in AUDITED_TABLES.items():
        for name in audits if printed in OF_INDICES else list(audits)[:1]:
            counts = audits[name].loc[audits[name]["table"] == printed, "agreement"].value_counts()
            shown = name if printed in OF_INDICES else ""
            rows.append([printed, title, shown, *(counts.get(each, 0) for each in AGREEMENTS)])
    return text_table(["table", "content", "normalization", *AGREEMENTS], rows, align="lllrrrr")


def _contradictions(table: pd.DataFrame) -> str:
    from cab.results.audit import CONTRADICTS

    rows = []
    for row in table[table["agreement"] == CONTRADICTS].to_dict("records"):
        decimals = max(len(row["printed"].partition(".")[2]), 3)
        recomputed, low, high = (number(row[name], decimals) for name in ("recomputed", "low", "high"))
        names = [row[name] for name in ("table", "pattern", "task", "attention", "printed")]
        rows.append([*names, recomputed, f"{low} .. {high}", row["note"]])
    header = ["table", "pattern", "task", "attention", "printed", "recomputed", "possible range", "note"]
    return text_table(header, rows, align="llllrrrl")


def _analyze(args: argparse.Namespace) -> None:
    if args.rows < 1 or getattr(args, "steps", 0) < 0:
        raise UserError(f"--rows must be at least 1 and --steps at least 0, got {args.rows} and {args.steps}")
    if args.out is not None:
        check_writable(args.out, "--out")
    from cab.analysis.subject import subject_of

    subject = subject_of(args.subject, args.data_root)
    print(subject.title)
    {"gradients": _gradients, "dilution": _dilution}[args.verb](subject, args)


def _dilution(subject: AnalyzedNetwork, args: argparse.Namespace) -> None:
    from cab.analysis.dilution import dilution

    curves = dilution(subject, rows=args.rows)
    print(text_table(["layer", "area"], [[curve.path, f"{curve.area:.3f}"] for curve in curves], align="lr"))
    rows = [
        {"layer": curve.path, "share_of_neighbors": share / len(curve.mass), "share_of_attention": mass}
        for curve in curves
        for share, mass in enumerate(curve.mass.tolist(), start=1)
    ]
    _write(args.out, "dilution", rows)


def _gradients(subject: AnalyzedNetwork, args: argparse.Namespace) -> None:
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
        print(f"\ngradient norm over {counted(len(norms), 'step')}:")
        print(text_table(["parameters", "SD / mean"], variations, align="lr"))
        name = subject.cell.config.attention.name
        _write(args.out, "norms", [{"attention": name, **row} for row in norms])


def _write(folder: Path | None, name: str, table: Sequence[Mapping[str, Any]]) -> None:
    if folder is not None:
        import pandas as pd

        write_csv(pd.DataFrame(table), folder / f"{name}.csv")
