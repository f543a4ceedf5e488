"""`cab score`: metrics and scores of results.

First, every metric is printed as mean ± standard deviation over seeds; (n) follows a metric with fewer seeds than the
row. Then follows the score, or the reason why it is missing:

K          cells of the synthetic suite: the share of softmax attention's gain over no attention that is retained, in
           percent. Each result has its one-sided 95% bound over seeds, adjusted over the cell (Holm). ▼: the bound is
           below 98; ?: undecided; *: a single seed; ≥: still learning when the budget ended.
index      real data: the compositional index of the paper. The index of a task is the mean of its metrics, each
           normalized and with the sign changed if lower is better; task `all` is the mean over tasks. It requires every
           value of Table 3 (--partial: those that there are). [low, high]: 95% interval over seeds. `>` marks a
           significant difference to the next attention, `~` an undecided one. Published indices are as printed;
           --normalization also recomputes them. ‡: runs of other settings than the published ones.

A dagger precedes an attention whose code has not passed `cab verify` in the pattern.

examples:
  cab score
  cab score results/paper --normalization official --pattern NS
  cab score results/local results/paper --score index
  cab score results/local --score K --csv
  cab score --attention FILE.py:Class
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.cli.arguments import add_results_arguments, print_notes, selected_results
from cab.errors import UserError
from cab.files.disk import listed, sanitize_text
from cab.files.text_table import print_csv
from cab.records.files import REFERENCE_DIRS
from cab.records.names import PLACE
from cab.registry.names import unknown_class
from cab.results.cells import ANCHORS
from cab.results.formats import Fields, TableCell, gain, mean
from cab.results.load import DEFAULT_DIR, PUBLISHED, load, runs_of
from cab.results.retained import gains_order, gains_table, suite_runs, warn_unscored
from cab.results.summarize import metrics_table, verification_notes
from cab.results.table import Table, legend
from cab.results.validity import NOT_JUDGED, YES, checks_frame, missing_evidence
from cab.results.verdict import is_named, judge_attentions

if TYPE_CHECKING:
    import pandas as pd

SCORE_PARTS = ("metrics", "K", "index")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_results_arguments(parser)
    parser.add_argument("--score", choices=SCORE_PARTS, help="print this alone (default: metrics, and every score)")
    parser.add_argument(
        "--show",
        choices=("scores", "pairwise", "ablation"),
        default="scores",
        help="scores (default); pairwise: difference of every two attentions and its significance over seeds; "
        "ablation: index of the best efficient attention, of softmax attention and of no attention",
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        help="index of the values that there are, named `TASK (partial: n of N values)`",
    )
    parser.add_argument("--csv", action="store_true", help="print one of the tables as CSV")
    parser.add_argument(
        "--attention",
        nargs="+",
        metavar="A",
        help="print the verdict on these attentions in the cells of the suite (default RESULTS: yours, or else the "
        "bundled reference results)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="check whether the cells of the suite measure and grade attentions, and return 1 if not (default RESULTS: "
        "the bundled reference results)",
    )


def run(args: argparse.Namespace) -> int:
    folders = None if args.results == [DEFAULT_DIR] else args.results
    if args.check:
        return _check(folders or REFERENCE_DIRS, as_csv=args.csv)
    if args.attention:
        for name in args.attention:
            print_verdict(name, _frame_with(name, folders))
        return 0
    from cab.results.index_tables import no_score

    frame = selected_results(args)
    reasons = no_score(frame, normalization=args.normalization)
    has_index = (frame["source"] != PUBLISHED) | (frame["kind"] == "index") | (args.normalization is not None)
    scores = [kind for kind in SCORE_PARTS if ((frame["score"] == kind) & (has_index | (kind != "index"))).any()]
    is_single = args.csv or args.show != "scores"
    parts = [args.score] if args.score else [*([] if is_single else ["metrics"]), *scores]
    if args.show == "ablation":
        if args.score not in (None, "index") or "index" not in scores:
            raise UserError(f"--show ablation requires an index; {'; '.join(reasons) or 'remove --show or --score'}")
        parts = ["index"]
    parts = parts or ["metrics"]
    if is_single and len(parts) > 1:
        raise UserError(f"the results have {' and '.join(parts)}; choose one, for example with --score {parts[0]}")
    if parts[0] not in (*scores, "metrics") or (args.show != "scores" and parts[0] == "metrics"):
        raise UserError(
            f"no score to show: {'; '.join(reasons) or f'the results have {scores[0]}; use --score {scores[0]}'}"
        )
    printers = {"metrics": _print_metrics, "K": _print_gains, "index": _print_index}
    own = frame[frame["source"] != PUBLISHED]
    of_metrics = own if len(own) and not args.csv else frame
    for part in parts if (of_metrics["kind"] == "metric").any() else parts[1:] or parts:
        print("\n" * (part != parts[0]), end="")
        printers[part](of_metrics if part == "metrics" else frame[frame["score"] == part], args)
    print_notes(["--partial has no effect: no index is printed"] * (args.partial and "index" not in parts))
    print_notes([] if args.score else reasons)
    return 0


def _print_metrics(frame: pd.DataFrame, args: argparse.Namespace) -> None:
    table = metrics_table(frame)
    if args.csv:
        print_csv(table)
        return
    print("\n\n".join(_metric_table(place, rows).to_text() for place, rows in table.groupby(PLACE, sort=False)))
    lacking = table[(table["missing"] != "") & (table["source"] != PUBLISHED)]
    groups = lacking.groupby([*PLACE, "attention", "missing"], sort=False)["metric"]
    lines: Any = groups.agg(list).items()
    print_notes(f"{' '.join(filter(None, key[:-1]))}, {listed(metrics)}: {key[-1]}" for key, metrics in lines)
    print_notes(verification_notes(frame))


def _metric_table(place: Any, table: pd.DataFrame) -> Table:
    """Return one row per attention, best first; (n) follows a metric with fewer seeds than the row."""
    import pandas as pd

    table = table.assign(label=table["attention"], most=table.groupby("attention")["seeds"].transform("max"))
    table = table.sort_values("primary", ascending=False, kind="stable")
    is_first = table["metric"] == table["metric"].iloc[0]
    first = table[is_first].sort_values("mean", ascending=not table["higher_is_better"].iloc[0])

    def cell(row: Fields) -> TableCell:
        return mean(
            row["mean"], row["sd"], row["missing"], note=f" ({row['seeds']:.0f})" * (row["seeds"] < row["most"])
        )

    preset, *others = place
    caption = f"{' '.join(filter(None, others))} ({preset})"
    return Table.wide(pd.concat([first, table[~is_first]]), "metric", cell, seeds="max", caption=caption)


def _print_gains(frame: pd.DataFrame, args: argparse.Namespace) -> None:
    gains = gains_order(frame) if args.show == "pairwise" else gains_table(frame)
    if args.csv:
        print_csv(gains)
    elif args.show == "pairwise":
        print(Table.of(gains).to_text())
    else:
        scored = gains[gains["seeds"] > 0].groupby("pattern", sort=False)
        tables = [_gain_table(pattern, rows) for pattern, rows in scored]
        print("\n\n".join(table.to_text() for table in tables) or "no result has K")
        missing = gains[gains["seeds"] == 0].itertuples()
        print_notes(f"{row.attention}: no K in {row.task} {row.pattern}: {row.note}" for row in missing)
        print_notes(legend(tables))


def _gain_table(pattern: Any, gains: pd.DataFrame) -> Table:
    """Return one row per attention and source, with K in each cell of a pattern; the largest K first."""
    import pandas as pd

    names = gains["ability"].where(gains["ability"] != "", gains["task"] + " " + gains["backbone"])
    labels = gains["attention"] + gains["source"].map({"own": " (yours)"}).fillna("")
    gains = gains.assign(cell=names, label=labels)
    is_first = gains["cell"] == gains["cell"].iloc[0]
    ranked = pd.concat([gains[is_first].sort_values("K", ascending=False, kind="stable"), gains[~is_first]])
    return Table.wide(ranked, "cell", gain, heading=f"K, {pattern}")


def _print_index(frame: pd.DataFrame, args: argparse.Namespace) -> None:
    import pandas as pd

    from cab.results.index import benefit_of_attention, order_table, scores_by_source
    from cab.results.index_tables import index_tables, named_members, notes_on

    scored = scores_by_source(frame, normalization=args.normalization, tasks=args.task or (), partial=args.partial)
    made = {
        "scores": lambda scores: scores.table,
        "pairwise": order_table,
        "ablation": lambda scores: benefit_of_attention(scores.table),
    }
    tables = {source: made[args.show](scores) for source, scores in scored.items()}
    notes = [note for scores in scored.values() for note in (*notes_on(scores), *verification_notes(scores.results))]
    if args.csv or args.show != "scores":
        if args.show != "scores":
            how = {source: scores.normalization for source, scores in scored.items()}
            tables = {source: of.assign(source=source, normalization=how[source]) for source, of in tables.items()}
        table = pd.concat(tables.values(), ignore_index=True)
        several = {key: names for of in scored.values() for key, names in of.members.items() if len(names) > 1}
        notes += [f"{pattern} {task} averages {named_members(names)}" for (pattern, task), names in several.items()]
        print_csv(table) if args.csv else print(Table.of(table).to_text())
    else:
        shown = list(index_tables(scored))
        texts = (
            "\n".join([made.to_text(), *(sanitize_text(f"  {task}: {names}") for task, names in members)])
            for made, members in shown
        )
        print("\n\n".join(texts))
        notes = [*(remark for made, _ in shown for remark in made.remarks), *legend(made for made, _ in shown), *notes]
    print_notes(notes)


def _frame_with(name: str, folders: list[Path] | None) -> pd.DataFrame:
    """Return the frame of folders and the reference results if a result is of this attention.

    Without folders, it is that of the user's results, or else of the reference results alone.
    """
    known: dict[str, None] = {}
    for group in [folders] if folders else [[DEFAULT_DIR] if DEFAULT_DIR.is_dir() else [], list(REFERENCE_DIRS)]:
        frame = load(group, with_reference=True).frame
        runs = runs_of(frame)
        named = runs[runs["file"].map(lambda file: Path(file).parent.resolve()).isin([p.resolve() for p in group])]
        rows: Any = named.to_dict("records")
        if name in ANCHORS or any(is_named(row, name) for row in rows):
            return frame
        known |= dict.fromkeys(named["label"])
    raise unknown_class("attention with results", name, known)


def print_verdict(name: str, frame: pd.DataFrame) -> None:
    """Print the verdict on an attention per pattern."""
    if name in ANCHORS:
        print(f"\n{name} is an anchor of the suite: its K is 100 (vanilla) or 0 (none) by definition")
        return
    verdicts = judge_attentions([name], frame)[name]
    if not verdicts:
        reason = "no verdict, because its results have other options than the cells of the suite"
        print(f"\n{sanitize_text(name)}: {reason}")
    for lines in verdicts:
        print("\n" + "\n".join(map(sanitize_text, lines)))


def _check(folders: Iterable[Path], *, as_csv: bool) -> int:
    """Return 1 if a cell does not measure attention, a core cell does not grade, or the suite lacks evidence."""
    runs = suite_runs(load(folders).frame)
    if all(runs["reason"]):
        places = " ".join(map(str, folders))
        raise UserError(f"no result in {places} is of a cell of the suite; run `cab run suite=core attention=NAME`")
    if folders != REFERENCE_DIRS:
        warn_unscored(runs)
    checks = checks_frame(runs)
    measures = [reason == YES for reason in checks["measures"] if not reason.startswith(NOT_JUDGED)]
    grades = checks.loc[checks["core"] == "yes", "grades"].isin([YES, NOT_JUDGED])
    lacking = missing_evidence(checks)
    table = checks.drop(columns=["compared", "worse"])
    if as_csv:
        print_csv(table)
    else:
        print(Table.of(table).to_text())
        print("\n".join(["", f"{sum(measures)} of {len(measures)} judged cells measure attention", *lacking]))
    return int(not all(measures) or not grades.all() or bool(lacking))
