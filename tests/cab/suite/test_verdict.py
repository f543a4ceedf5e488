"""The verdict on an attention among results of the suite, and the commands that print it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cab.cli.main import main
from cab.records.record import Cost, Record, Status
from cab.reports.figures import frontier
from cab.suite.verdict import judge_attention
from tests.cab.made_records import COST, make_about
from tests.cab.suite.suite_records import (
    CELLS,
    made_suite as made_suite,
    seeds,
    suite_record,
    value_record,
)

MINE = "mine.py:Mine"


def lines_of(reference: Path, *mine: Record) -> list[str]:
    """The verdict on ``mine`` in pattern CS, among the reference results."""
    [verdict] = judge_attention(MINE, mine, (reference,))
    assert verdict.pattern == "CS"
    return [line.strip() for line in verdict.lines]


def test_a_part_of_the_cells(made_suite: Path) -> None:
    mine = [value_record(CELLS["lstf"], MINE, mse, seed) for seed, mse in enumerate((0.00684, 0.00705, 0.00710))]
    lines = lines_of(made_suite, *mine)
    missing = ", ".join(str(cell) for task, cell in CELLS.items() if task != "lstf")
    assert lines[0] == f"{MINE}, pattern CS: 1 of 3 core cells, at least 3 seeds per cell; no K without {missing} (" + (
        f"`cab run suite=core attention={MINE} pattern=CS`)"
    )
    better = next(line for line in lines if line.startswith("significantly better than: "))
    assert {"gla", "linear", "local"} <= set(better.partition(": ")[2].replace(",", "").split())
    assert any(line.startswith("ceiling: in lstf informer CS, 3 of 6 are within 2 points of vanilla") for line in lines)
    assert f"not measured against softmax (`cab efficiency {MINE} --pattern CS`)" in lines[-2]
    assert lines[-1] == f"not verified: run `cab verify {MINE} --pattern CS`"


def test_one_seed_is_marked_and_compared_with_nobody(made_suite: Path) -> None:
    lines = lines_of(made_suite, suite_record("lstf", MINE, 72.1))
    assert lines[0].startswith(f"{MINE}, pattern CS: 1 of 3 core cells, at least 1 seed per cell")
    assert not any(line.startswith("significantly") for line in lines)
    assert any("K 72.1*" in line for line in lines)
    assert lines[-1].startswith("* a single seed")


def test_all_core_cells_give_k_and_a_rank(made_suite: Path) -> None:
    mine = [run for task in CELLS for run in seeds(task, MINE, 80)]
    [verdict] = judge_attention(MINE, mine, (made_suite,))
    lines = [line.strip() for line in verdict.lines]
    assert lines[0] == f"{MINE}, pattern CS: 3 of 3 core cells, at least 3 seeds per cell"
    assert lines[1].startswith("K ")
    assert lines[1].endswith("in percent; rank 3 of 6")
    assert lines[2].startswith("solved in 0 of 9 runs; worst cell: ")
    assert "significantly worse than: vanilla, abc, ssd (1 of 3 cells)" in lines
    assert "significantly better than: linear, local, none, gla (1 of 3 cells)" in lines
    assert [row.gain.attention for row in verdict.rows][:4] == ["vanilla", "abc", MINE, "linear"]


def test_steps_to_solve_are_shown(made_suite: Path) -> None:
    costs = {seed: Cost(steps_to_solve=100 * seed, cpu_seconds=20.0) for seed in (1, 2, 3)}
    mine = [suite_record("lstf", MINE, 100, seed, cost=cost) for seed, cost in costs.items()]
    line = next(line for line in lines_of(made_suite, *mine) if line.startswith("lstf informer CS"))
    assert "solved in 3 of 3 seeds, after 200 [0, 448] steps" in line
    assert "20 CPU seconds per training run" in lines_of(made_suite, *mine)[-2]


def test_an_unfinished_seed_is_named(made_suite: Path) -> None:
    done = suite_record("lstf", MINE, 90)
    about = make_about(**{**done.cell, "seed": 2}, config=done.config)
    reason = FloatingPointError("the loss is nan")
    failed = Record.failed(about, status=Status.DIVERGED, error=reason, step=3, cost=COST, metrics=[])
    assert "not scored: lstf informer CS: seed 2 is diverged" in lines_of(made_suite, done, failed)


@pytest.mark.usefixtures("made_suite")
def test_the_report_prints_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for record in seeds("lstf", "mine", 80):
        record.write(tmp_path)
    assert main(["suite", "report", str(tmp_path), "--attention", "mine"]) == 0
    printed = capsys.readouterr().out
    assert "mine, pattern CS: 1 of 3 core cells" in printed
    assert "error / vanilla" in printed
    assert main(["suite", "report", str(tmp_path), "--attention", "min"]) == 2
    capsys.readouterr()
    assert main(["suite", "report", str(tmp_path)]) == 0
    assert "mine" in capsys.readouterr().out


def test_the_frontier() -> None:
    points = {
        "fast": (0.1, 50.0),
        "slow": (1.0, 100.0),
        "worse": (0.2, 40.0),
        "equal": (0.1, 30.0),
        "best": (0.5, 90.0),
    }
    assert frontier(points) == ["fast", "best", "slow"]
