"""`cab analyze`: attention over neighbors, gradients of attention scores, and rounding of the decoding state."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.files.disk import check_writable
from cab.files.text_table import text_table

if TYPE_CHECKING:
    from cab.analysis.subject import Subject

Rows = Sequence[Mapping[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Analysis gradients: distribution of dL/ds per layer with its bounds, and gradient norms over training steps. "
        "Analysis dilution: share of attention on the nearest tokens per layer, and the area under this curve. "
        "Analysis rounding: the decoding state is rounded to bfloat16, fp8 or int8 after each token. It shows the "
        "error of the outputs of untrained attentions by number of tokens, or the scores of a trained network."
    )
    parser.add_argument("analysis", choices=("gradients", "dilution", "rounding"))
    parser.add_argument(
        "subject",
        nargs="+",
        metavar="RECORD.json | KEY=VALUE | NAME",
        help="record file with trained weights next to it, or overrides of `cab run` for an untrained network: task=lm "
        "dataset=synthetic attention=linear pattern=CS preset=mini. Analysis rounding accepts a record file, names of "
        "attentions, or all (every attention with a state of constant size)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder for the CSV files")
    rows, steps = "training examples, or random sequences (default: 4)", "training steps, or decoded tokens (0: 8192)"
    parser.add_argument("--rows", type=int, default=4, metavar="N", help=rows)
    parser.add_argument("--steps", type=int, default=0, metavar="N", help=steps)
    parser.add_argument("--data-root", metavar="FOLDER", help="data folder (default: that of the record)")


def run(args: argparse.Namespace) -> int:
    if args.rows < 1 or args.steps < 0:
        raise UserError(f"--rows must be at least 1 and --steps at least 0, got {args.rows} and {args.steps}")
    if args.steps and args.analysis == "dilution":
        raise UserError(
            "--steps applies to gradients only; to analyze the dilution of a trained network, pass its record"
        )
    if args.out is not None:
        check_writable(args.out, "--out")
    if args.analysis == "rounding" and not args.subject[0].endswith(".json"):
        _rounding_of_outputs(args)
        return 0
    from cab.analysis.subject import subject_of

    subject = subject_of(args.subject, args.data_root)
    print(subject.title)
    {"gradients": _gradients, "dilution": _dilution, "rounding": _rounding_of_scores}[args.analysis](subject, args)
    return 0


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


def _rounding_of_scores(subject: Subject, args: argparse.Namespace) -> None:
    from cab.analysis.rounding import rounded_scores

    attention = subject.cell.config.attention.name
    scores = rounded_scores(subject).items()
    _print_rounding([{"attention": attention, "format": name, **metrics} for name, metrics in scores], args.out)


def _rounding_of_outputs(args: argparse.Namespace) -> None:
    from cab.analysis.rounding import bits_needed, constant_state_attentions, rounding_errors, untrained

    rows: list[dict[str, Any]] = []
    for name in constant_state_attentions() if args.subject == ["all"] else args.subject:
        errors = rounding_errors(untrained(name), rows=args.rows, steps=args.steps or 8192)
        for number_format, by_position in errors.items():
            columns = {f"error_{position}": error for position, error in by_position.items()}
            rows.append({"attention": name, "format": number_format, **columns, "state_bits": bits_needed(errors)})
    _print_rounding(rows, args.out)


def _print_rounding(rows: Rows, out: Path | None) -> None:
    texts = [[f"{x:.3g}" if isinstance(x, float) else str(x) for x in row.values()] for row in rows]
    print(text_table(list(rows[0]), texts, align="llr"))
    _write(out, "rounding", rows)


def _write(folder: Path | None, name: str, rows: Rows) -> None:
    if folder is not None:
        import pandas as pd

        from cab.reports.tables import write_csv

        write_csv(pd.DataFrame(rows), folder / f"{name}.csv")
