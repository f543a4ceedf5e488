"""Two processes do what one does: batch norm, ddp, fsdp, and who writes the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cab.runner.processes import records, run_cab, run_module, the_record

CELL = [
    "task=lstf",
    "dataset=synthetic",
    "attention=vanilla",
    "pattern=NC",
    "preset=smoke",
    "device=cpu",
    "backbone.dropout=0",
    "trainer.max_steps=12",
    "trainer.batch_size=16",
    "trainer.validate_every=3",
]


LM = [
    "task=lm",
    "dataset=synthetic",
    "attention=vanilla",
    "pattern=CS",
    "preset=smoke",
    "device=cpu",
    "backbone.dropout=0",
    "backbone.attention_dropout=0",
    "trainer.max_steps=12",
    "trainer.batch_size=8",
    "trainer.validate_every=3",
]


def record(folder: Path, *overrides: str, processes: int, cell: list[str] = CELL) -> dict[str, Any]:
    process = run_cab(*cell, *overrides, f"results_dir={folder}", processes=processes)
    assert process.returncode == 0, process.stderr
    return the_record(folder)


@pytest.mark.slow
def test_batch_norm_has_the_statistics_of_all_processes(tmp_path: Path) -> None:
    process = run_module("tests.cab.runner.two_processes", tmp_path / "worst.json", processes=2)
    assert process.returncode == 0, process.stderr
    worst = json.loads((tmp_path / "worst.json").read_text())
    assert set(worst) == {"output", "gradient", "state", "evaluation"}
    assert max(worst.values()) < 1e-5, worst


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return record(tmp_path_factory.mktemp("alone"), processes=1)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [("ddp",), ("ddp", "trainer.micro_batch_size=4"), ("fsdp",)])
def test_two_processes_train_as_one(overrides: tuple[str, ...], alone: dict[str, Any], tmp_path: Path) -> None:
    strategy, *more = overrides
    both = record(tmp_path, f"trainer.strategy={strategy}", *more, processes=2)
    assert both["hash"] == alone["hash"]
    assert both["cost"]["processes"] == 2
    assert [entry["step"] for entry in both["history"]] == [3, 6, 9, 12]
    if not more:  # batch norm sees micro-batches, so smaller ones are another computation
        for one, two in zip(alone["history"], both["history"], strict=True):
            assert two["loss"] == pytest.approx(one["loss"], abs=1e-4)
        assert both["metrics"][0]["value"] == pytest.approx(alone["metrics"][0]["value"], abs=1e-3)
    else:
        assert both["history"][-1]["loss"] == pytest.approx(alone["history"][-1]["loss"], abs=0.05)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return record(tmp_path_factory.mktemp("alone"), processes=1, cell=LM)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [("ddp", "trainer.micro_batch_size=2"), ("fsdp",)])
def test_two_processes_train_a_language_model_as_one(
    overrides: tuple[str, ...], language_model: dict[str, Any], tmp_path: Path
) -> None:
    """No batch norm here: micro-batches change nothing either."""
    strategy, *more = overrides
    alone = language_model
    both = record(tmp_path, f"trainer.strategy={strategy}", *more, processes=2, cell=LM)
    assert both["hash"] == alone["hash"]
    losses = [[entry["loss"] for entry in run["history"]] for run in (alone, both)]
    assert len(losses[0]) == 4
    assert losses[0][-1] < losses[0][0]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    [one], [two] = ([m["value"] for m in run["metrics"] if m["primary"]] for run in (alone, both))
    assert two == pytest.approx(one, rel=1e-4)


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_in_one(language_model: dict[str, Any], tmp_path: Path) -> None:
    options = [*LM, "trainer.checkpoint_every=1", "trainer.strategy=fsdp"]
    stop = f"kill step-00000004.ckpt {tmp_path / 'killed'}"
    killed = run_cab(*options, f"results_dir={tmp_path}", processes=2, stop=stop)
    assert killed.returncode != 0
    assert not records(tmp_path)
    resumed = record(tmp_path, processes=1, cell=options)
    assert (resumed["cost"]["processes"], resumed["cost"]["steps"]) == (1, 12)
    losses = [[entry["loss"] for entry in run["history"]] for run in (language_model, resumed)]
    # Before the cut the first entry has the losses of the first process alone.
    assert losses[1][1:] == pytest.approx(losses[0][1:], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_reversible_layers_of_two_processes_are_those_of_one(strategy: str, tmp_path: Path) -> None:
    runs = [
        record(
            tmp_path / str(count), f"trainer.strategy={strategy}", "backbone.reversible=true", processes=count, cell=LM
        )
        for count in (1, 2)
    ]
    one, two = ([entry["loss"] for entry in run["history"]] for run in runs)
    assert two == pytest.approx(one, abs=1e-4)
