"""Tuned learning rates: the grid of each cell and attention, the rate that is chosen, and the record that says so."""

import shlex
from typing import Any

import pytest

from cab.config.compose import compose
from cab.records.record import Record
from cab.runner.cell import Cell
from cab.runner.suite import SEED, chosen_rate, suite_sweeps, tuned_sweeps


def row(rate: float, validation: float | None, steps: int | None = None, status: str = "finished") -> dict[str, Any]:
    return {"learning_rate": rate, "status": status, "validation": validation, "steps_to_solve": steps}


@pytest.mark.parametrize(
    ("grid", "rate"),
    [
        ([row(1e-3, 0.9), row(3e-3, 0.5), row(9e-3, 0.7)], 3e-3),
        ([row(1e-3, 0.1), row(3e-3, 0.5, 200), row(9e-3, 0.4, 100)], 9e-3),
        ([row(1e-3, 0.9), row(3e-3, None, None, "diverged"), row(9e-3, 1.0)], 1e-3),
    ],
)
def test_the_first_to_solve_or_else_the_lowest_loss(grid, rate):
    assert chosen_rate(grid) == rate


def test_a_pattern_that_the_attention_does_not_support_is_left_to_the_scored_runs():
    [sweep] = suite_sweeps(["suite=core", "attention=gla", "task=probe", "pattern=NS"]) or []
    [untuned] = tuned_sweeps([sweep])
    assert sorted(untuned) == sorted(sweep)


def test_the_record_of_a_tuned_run_contains_its_grid(tmp_path, cab):
    suite = ["suite=core", "attention=vanilla", "task=probe", "pattern=NC", "seed=1", f"results_dir={tmp_path}"]
    small = "trainer.max_steps=2 trainer.validate_every=1 task.examples=64 task.test_examples=16 device=cpu"
    assert "\nvanilla, pattern NC\n  " in cab("run", *suite, "tune=true", *small.split()).out, "its state and cost"
    grid = [Record.read(path) for path in (tmp_path / "tuning").glob("*.json")]
    assert {record.cell["seed"] for record in grid} == {SEED}
    rates = [record.config["trainer"]["learning_rate"] for record in grid]
    assert sorted(rates) == pytest.approx([0.001, 0.003, 0.009])
    [record] = map(Record.read, tmp_path.glob("*.json"))
    assert (record.cell["seed"], record.cell["attention"]) == (1, "vanilla(tuned)")
    rows = record.config["tuning"]["grid"]
    assert record.config["tuning"]["seed"] == SEED
    assert {row["learning_rate"]: row["validation"] for row in rows} == {
        each.config["trainer"]["learning_rate"]: min(entry["validation"] for entry in each.history) for each in grid
    }
    assert record.config["trainer"]["learning_rate"] == chosen_rate(rows)
    assert Cell.from_config(compose(shlex.split(record.command.removeprefix("cab run ")))).hash == record.hash
