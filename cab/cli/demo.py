"""`cab demo`: the road from cells to Table 3 in small, on generated data, in one to two minutes.

It trains four attentions in cells of two patterns, prints their results alongside the published ones, and checks the
installation: softmax attention must recall facts as in the reference results. Repeat the command to see the result
again.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path

from cab.cli.main import main
from cab.cli.terminal import log_to_terminal
from cab.files.disk import check_writable
from cab.records.files import REFERENCE_DIRS
from cab.records.record import Record
from cab.results.cells import suite_cells
from cab.results.guards import select
from cab.results.load import load_results
from cab.results.retained import gains_table
from cab.results.statistics import student_quantile
from cab.runner.suite import suite_sweeps

REHEARSED = ("pattern=NC,CS", "task=lstf,pcc,sum", "attention=vanilla,abc,local,cosformer")
"""The part of `cab run suite=paper` that is rehearsed: NC is complete, so it has an index."""
SHOWN_PATTERN = "NC"
CHECKED = ("probe", "mixer", "CC")
"""The cell of the suite whose runs are the shortest."""
INTRODUCTION = "Four attentions in three tasks of the paper, on generated data (a rehearsal): one to two minutes."
NEXT = """
{outcome}  Next:
  the table of your runs   cab paper table3 {out}
  test your attention      cab verify FILE.py:Class
  compare it               cab run suite=core attention=FILE.py:Class
  what the paper took      cab run suite=paper --dry-run
  all results              {page}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = Path("results/demo")
    parser.add_argument("--out", type=Path, default=default, help=f"folder of results and page (default: {default})")


def run(args: argparse.Namespace) -> int:
    """Return 0 if all runs finish, and the checked score is as expected, else 1."""
    check_writable(args.out, "--out")
    print(INTRODUCTION, flush=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as for the reference; torch reads it when it is imported
    from cab.config.compose import check_overrides
    from cab.runner.launch import run_sweeps

    log_to_terminal(logging.WARNING, "%(message)s", force=True)  # the terminal has a progress bar
    out = f"results_dir={args.out}"
    checked = [f"{key}={name}" for key, name in zip(("task", "backbone", "pattern"), CHECKED, strict=True)]
    sweeps = [
        *(suite_sweeps(["suite=paper", "preset=smoke", "dataset=synthetic", *REHEARSED, out]) or []),
        *(suite_sweeps(["suite=core", *checked, "attention=vanilla", "seed=1", out]) or []),
    ]
    report = run_sweeps([check_overrides(sweep, sweep=True) for sweep in sweeps])
    records = [outcome.record for outcome in report.outcomes if outcome.record]
    of_check = [record for record in records if record.cell["task"] == CHECKED[0]]
    if report.exit_status or not of_check:
        report.log_end()
        return report.exit_status or 1
    _print_table(args.out)
    is_as_expected = _print_check(of_check[0])
    page = args.out / "leaderboard"
    status = main(["leaderboard", str(args.out), "--with-reference", "--out", str(page)])
    outcome = "Your installation works." if is_as_expected else "A score is not as expected."
    print(NEXT.format(outcome=outcome, out=args.out, page=(page / "index.html").resolve().as_uri()))
    return status or int(not is_as_expected)


def _print_table(folder: Path) -> None:
    """Print the rehearsed part of Table 3: the attentions of the table with own results."""
    from cab.results.table3 import side_by_side, tables

    frame = side_by_side(select(load_results(folder), preset="smoke"))
    own = frame.loc[frame["own"].notna(), "attention"].unique()
    [table] = tables(frame[(frame["pattern"] == SHOWN_PATTERN) & frame["attention"].isin(own)], narrow=True)
    print(f"\n{table.to_text()}")


def _print_check(record: Record) -> bool:
    """Print the score of softmax attention with its reference, and return whether it is as expected.

    A score is expected within the 95% prediction interval of a new seed, or within 0.02.
    """
    [cell] = [cell for cell in suite_cells() if cell.key == CHECKED]
    gains = gains_table(load_results(REFERENCE_DIRS))
    is_checked = (gains[["task", "backbone", "pattern", "attention"]] == [*CHECKED, "vanilla"]).all(axis=1)
    [reference] = gains[is_checked].to_dict("records")
    seeds, deviation, own = reference["seeds"], reference["sd"], cell.value(record)
    spread = student_quantile(seeds - 1) * deviation * (1 + 1 / seeds) ** 0.5
    is_expected = abs(own - reference["mean"]) <= max(spread, 0.02)
    print(
        f"\nCheck: softmax attention recalls 64 facts with {cell.metric} {own:.3f}; the reference is "
        f"{reference['mean']:.3f} ± {deviation:.3f} ({seeds} seeds): {'' if is_expected else 'not '}as expected."
    )
    return bool(is_expected)
