"""Training that ends when the cell is solved: at the cap or before, and at the same step after an interruption."""

from __future__ import annotations

import pytest

from cab.records.record import Record, Status
from tests.helpers.runs.fixtures import troubled_config
from tests.helpers.runs.troubled import Troubled, trained

EVERY = ("trainer.validate_every=2", "trainer.checkpoint_every=1")


@pytest.fixture(scope="module")
def free(tmp_path_factory):
    """A run that nothing stops: eight steps, four falling validation losses."""
    record = trained(troubled_config(*EVERY, f"results_dir={tmp_path_factory.mktemp('free')}"))
    losses = [entry["validation"] for entry in record.history]
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
    assert record.cost.steps_to_solve is None
    return record


def threshold(free: Record) -> str:
    return f"trainer.stop_at={free.history[1]['validation']!r}"


def test_training_stops_at_the_first_score_that_solves(free, troubled, tmp_path):
    solved = trained(troubled(*EVERY, threshold(free)))
    assert solved.cost.steps == solved.cost.steps_to_solve == solved.cost.best_step == 4
    assert list(solved.history) == list(free.history[:2])
    assert Record.read(tmp_path / f"{solved.hash}.json").cost == solved.cost


def test_the_cap_ends_a_run_that_is_not_solved(free, troubled):
    capped = trained(troubled(*EVERY, "trainer.stop_at=0"))
    assert (capped.cost.steps, capped.cost.steps_to_solve) == (8, None)
    assert capped.history == free.history
    assert capped.metrics == free.metrics
    assert capped.hash != free.hash


@pytest.mark.parametrize("at", [2, 5])
def test_a_resumed_run_stops_at_the_same_step(at, free, troubled, tmp_path):
    uncut = trained(troubled(*EVERY, threshold(free), f"task.at={at}", f"results_dir={tmp_path / 'uncut'}"))
    cell = [*EVERY, threshold(free), f"task.at={at}"]
    assert trained(troubled(*cell, trouble="crash")).status is Status.FAILED
    resumed = trained(troubled(*cell, "retry=[failed]"))
    assert resumed.metrics == uncut.metrics
    assert resumed.history == uncut.history
    assert (resumed.cost.steps, resumed.cost.steps_to_solve) == (4, 4)


def test_a_solved_run_that_is_resumed_makes_no_step(free, troubled, monkeypatch):
    made: list[int] = []

    def evaluate(self, backbone, batches):  # noqa: ARG001
        made.append(self.calls)
        if len(made) == 1:
            raise RuntimeError("cut before the record is written")
        return {"score": 1.0, "total": float(next(backbone.parameters()).double().sum())}

    monkeypatch.setattr(Troubled, "evaluate", evaluate)
    trained(troubled(*EVERY, threshold(free)))
    resumed = trained(troubled(*EVERY, threshold(free), "retry=[failed]"))
    assert made == [6, 0]  # four steps and two validations, then none
    assert (resumed.cost.steps, resumed.cost.steps_to_solve) == (4, 4)


def test_the_rate_does_not_depend_on_when_training_stops(free, troubled, tmp_path):
    """A schedule that decays is that of the cap: the first steps are those of a run that goes on."""
    linear = [*EVERY, "trainer.schedule=linear"]
    whole = trained(troubled(*linear, f"results_dir={tmp_path / 'whole'}"))
    stopped = trained(troubled(*linear, f"trainer.stop_at={whole.history[1]['validation']!r}"))
    assert list(stopped.history) == list(whole.history[:2])
    assert stopped.cost.steps == 4
    assert free.history != whole.history
