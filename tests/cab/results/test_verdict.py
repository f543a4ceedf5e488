"""The verdict on an attention among results of the suite, and the commands that print it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from cab.records.record import Cost, Record, Status
from cab.results import cells
from cab.results.verdict import frame_of, judge_attentions
from tests.helpers.command import Command
from tests.helpers.made_records import COST, make_about
from tests.helpers.suite_records import CELLS, made_suite as made_suite, seeds, suite_record, with_config

MINE = "mine.py:Mine"

pytestmark = pytest.mark.usefixtures("made_suite")


def lines_of(*mine: Record) -> list[str]:
    """The verdict on ``mine`` in pattern CS, among the reference results."""
    [lines] = judge_attentions([MINE], frame_of(mine))[MINE]
    return [line.strip() for line in lines]


def test_a_part_of_the_cells() -> None:
    lines = lines_of(*seeds("lstf", MINE, 80))
    missing = ", ".join(str(cell) for task, cell in CELLS.items() if task != "lstf")
    assert lines[0] == f"{MINE}, pattern CS: 1 of 3 core cells; without {missing} (" + (
        f"`cab run suite=core attention={MINE} pattern=CS`)"
    )
    assert lines[1] == "periodic copy, lstf informer CS: worse than softmax attention, K 80.0, at most 80.7"
    assert lines[2].startswith("mse 0.1451 ± 0.0021 (vanilla 0.0064, none 0.7, ridge 0.7), reached 90 in 0 of 3 seeds")
    assert lines[3] == f"not verified: run `cab verify {MINE} --pattern CS`"
    assert lines[4].startswith("at most: one-sided 95% bound")


def test_core_cells_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (cell for cell in cells.suite_cells() if cell in (CELLS["lstf"], CELLS["probe"]))
    others = [cell for cell in cells.suite_cells() if cell != first]
    monkeypatch.setattr(cells, "suite_cells", lambda: [dataclasses.replace(first, core=False), *others])
    lines = lines_of(*seeds(first.task, MINE, 80), *seeds(second.task, MINE, 80))
    heads = [line for line in lines if "K 80" in line]
    assert [str(cell) in line for cell, line in zip((second, first), heads, strict=True)] == [True, True]
    assert heads[1].endswith("(not a core cell)")


PERIODIC = "periodic copy, lstf informer CS: "


@pytest.mark.parametrize(
    ("shares", "line", "last"),
    [
        ([72.1], "K 72.1*, not tested", "* a single seed"),
        ([100, 100], "2 of 2 solved", ""),
        ([60, 90, 99], "undecided, K 83.0, at most 100.0", "at most: "),  # a bound is at most 100
        ([110, 110.3, 109.7], "better than softmax attention, K 110.0", ""),
    ],
)
def test_the_line_of_a_cell(shares: list[float], line: str, last: str) -> None:
    lines = lines_of(*(suite_record("lstf", MINE, share, seed) for seed, share in enumerate(shares, 1)))
    assert lines[1] == PERIODIC + line
    assert lines[-1].startswith(last)
    assert ("±" in lines[2]) == (len(set(shares)) > 1)


def test_other_seeds_of_a_reference_join_its_family_instead_of_it() -> None:
    [lines] = judge_attentions(["abc"], frame_of(seeds("lstf", "abc", 90)))["abc"]
    assert lines[1].strip().startswith("periodic copy, lstf informer CS: worse than softmax attention, K 90.0")


def test_the_name_is_that_of_tables_or_commands() -> None:
    mine = [with_config(run, attention={"name": MINE}) for run in seeds("lstf", "Mine", 80)]
    one, other = judge_attentions(["Mine", MINE], frame_of(mine)).values()
    assert one == other
    assert one[0][0].startswith("Mine, pattern CS")


def test_steps_to_solve_are_shown() -> None:
    costs = {seed: Cost(steps_to_solve=100 * seed) for seed in (1, 2, 3)}
    mine = [suite_record("lstf", MINE, 100, seed, cost=cost) for seed, cost in costs.items()]
    lines = lines_of(*mine)
    assert any(line.endswith("reached 90 in 3 of 3 seeds, after 200 [0, 448] steps") for line in lines)


def test_an_unfinished_seed_is_named() -> None:
    done = suite_record("lstf", MINE, 90)
    about = make_about(**{**done.cell, "seed": 2}, config={**done.config, "seed": 2})
    reason = FloatingPointError("the loss is nan")
    failed = Record.failed(about, status=Status.DIVERGED, error=reason, step=3, cost=COST, metrics=done.metrics)
    assert "not scored: lstf informer CS: seed 2 is diverged" in lines_of(done, failed)


def test_score_prints_verdicts(tmp_path: Path, cab: Command) -> None:
    for record in seeds("lstf", "Mine", 80, config={"attention": {"name": MINE}}):
        record.write(tmp_path)
    for name in ("Mine", MINE):
        assert "Mine, pattern CS: 1 of 3 core cells" in cab("score", tmp_path, "--attention", name).out
    cab("score", tmp_path, "--attention", "Min", status=2)
    assert "Mine" in cab("score", tmp_path).out
