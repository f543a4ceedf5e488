"""`cab demo`: train two attentions in one to two minutes, and compare their scores with the reference results.

It needs no data. Repeat the command to see the result again.
"""

from __future__ import annotations

import argparse
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from cab.cli.terminal import log_to_terminal
from cab.files.disk import check_writable
from cab.files.text_table import text_table

if TYPE_CHECKING:
    from cab.records.record import Record

CELL = ("probe", "mixer", "CC")
"""The cell of the suite whose runs are the shortest."""
TRAINED = ("vanilla", "linear")
LABELS = {
    "vanilla": "softmax attention (vanilla)",
    "linear": "linear attention (linear)",
    "performer": "performer",
    "abc": "abc",
    "none": "no attention (none)",
}
QUESTION = "Can linear attention recall 64 facts from a source, as softmax attention can? One to two minutes."
NEXT = """
{verdict}  Next:
  test your attention   cab verify FILE.py:Class
  compare it            cab run suite=core attention=FILE.py:Class
  read the tutorial     "Your first attention" in the documentation
  see all results       {page}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    default = Path("results/demo")
    parser.add_argument("--out", type=Path, default=default, help=f"folder of results and page (default: {default})")


def run(args: argparse.Namespace) -> int:
    """Return 0 if all scores are as expected, else 1."""
    check_writable(args.out, "--out")
    print(QUESTION, flush=True)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as for the reference; torch reads it when it is imported
    from cab.cli.main import main
    from cab.config.compose import check_overrides
    from cab.runner.launch import run_sweeps
    from cab.runner.suite import suite_sweeps

    log_to_terminal(logging.INFO, "%(message)s", force=True)
    logging.getLogger("engines").setLevel(logging.WARNING)  # the terminal has a progress bar
    names = zip(("task", "backbone", "pattern", "attention"), (*CELL, ",".join(TRAINED)), strict=True)
    overrides = [*(f"{key}={value}" for key, value in names), "seed=1", f"results_dir={args.out}"]
    sweeps = suite_sweeps(["suite=core", *overrides]) or []
    report = run_sweeps([check_overrides(sweep, sweep=True) for sweep in sweeps])
    report.log_end()
    records = {str(outcome.record.cell["attention"]): outcome.record for outcome in report.outcomes if outcome.record}
    if report.exit_status or records.keys() != set(TRAINED):
        return report.exit_status or 1
    is_as_expected = _print_comparison(records)
    page = args.out / "leaderboard"
    status = main(["leaderboard", str(args.out), "--with-reference", "--out", str(page)])
    verdict = "Your installation works." if is_as_expected else "A score is not as expected."
    print(NEXT.format(verdict=verdict, page=(page / "index.html").resolve().as_uri()))
    return status or int(not is_as_expected)


def _print_comparison(records: dict[str, Record]) -> bool:
    """Print the scores with the reference results, and the verdict; return whether they are as expected.

    A score is expected within the 95% prediction interval of a new seed, or within 0.02.
    """
    from cab.records.files import REFERENCE_DIRS
    from cab.records.results import load_results
    from cab.results.cells import suite_cells
    from cab.results.gain import gains_frame
    from cab.results.statistics import student_quantile

    [cell] = [cell for cell in suite_cells() if cell.key == CELL]
    gains = gains_frame(load_results(REFERENCE_DIRS))
    is_of_cell = (gains[["task", "backbone", "pattern"]] == [*CELL]).all(axis=1)
    reference = gains[is_of_cell].set_index("attention")[["mean", "sd", "seeds"]].to_dict("index")
    means = {name: row["mean"] for name, row in reference.items()}
    own = {name: cell.value(record) for name, record in records.items()}
    rows, expected = [], []
    for name, label in LABELS.items():
        deviation, seeds = reference[name]["sd"], int(reference[name]["seeds"])
        cells = ["-", ""]
        if name in own:
            spread = student_quantile(seeds - 1) * deviation * (1 + 1 / seeds) ** 0.5
            expected.append(abs(own[name] - means[name]) <= max(spread, 0.02))
            cells = [f"{own[name]:.3f}", "as expected" if expected[-1] else "not as expected"]
        rows.append([label, cells[0], f"{means[name]:.3f} ± {deviation:.3f}", str(seeds), cells[1]])
    print("\n" + text_table([cell.metric, "yours", "reference", "seeds", ""], rows, align="lrrrl"))
    share = (own["linear"] - means["none"]) / (means["vanilla"] - means["none"])
    print(
        f"\nIn the cross-attention of a decoder (pattern {CELL[2]}), linear attention retains {share:.0%}\n"
        "of softmax attention's gain over no attention: one cell, one seed."
    )
    return all(expected)
