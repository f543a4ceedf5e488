"""`cab run --calibrate` times each distinct network once, on this device, and prints the earlier hours as well."""

import pytest
import torch

from cab.config.compose import compose
from cab.runner import calibration, plan
from cab.runner.calibration import training_hours
from cab.runner.cell import Cell

LSTF = ["task=lstf", "dataset=synthetic", "backbone=informer", "pattern=NC", "preset=smoke"]


def test_the_hours_are_those_of_all_steps(monkeypatch):
    clock = iter([0.0, *(100.0 + 36.0 * step for step in range(30))])  # the first step is slower
    monkeypatch.setattr(calibration.time, "perf_counter", lambda: next(clock))
    cell = Cell.from_config(compose([*LSTF, "attention=abc", "trainer.max_steps=500", "trainer.max_epochs=null"]))
    monkeypatch.setattr(calibration, "train_first_steps", lambda *x, **_: [x[3](n, torch.zeros(())) for n in range(20)])
    assert training_hours(cell) == pytest.approx(5.0)


def test_times_on_busy_cores_are_marked(monkeypatch, cab, tmp_path):
    monkeypatch.setattr(plan, "training_hours", lambda _: 2.0)
    for load in (4.0, 0.5):
        monkeypatch.setattr(plan, "load_per_core", lambda: load)  # noqa: B023
        printed = cab("run", *LSTF, "attention=abc", f"results_dir={tmp_path}", "device=cpu", "--calibrate").out
        assert ("(load 4.0 per core)" in printed) == (load > 1)


def test_each_network_is_timed_once_and_missing_data_keep_their_hours(monkeypatch, cab, tmp_path):
    timed: list[str] = []
    monkeypatch.setattr(calibration, "TIMED_STEPS", 2)
    real = calibration.train_first_steps
    monkeypatch.setattr(
        calibration,
        "train_first_steps",
        lambda cell, *args, **options: (timed.append(cell.label), real(cell, *args, **options)),
    )
    sweep = [*LSTF, "attention=abc,vanilla", "seed=1,2", f"results_dir={tmp_path}", "device=cpu"]
    text = cab("run", "-m", *sweep, "--calibrate").out
    assert timed == ["abc", "vanilla"]
    assert text.count("(this CPU), earlier") == 4
    assert "4 runs: " in text
    published = [word.replace("synthetic", "etth1").replace("smoke", "paper") for word in LSTF]
    printed = cab("run", "-m", *published, "attention=abc", f"data_root={tmp_path}", "--calibrate")
    assert "1.5 h (GPU)" in printed.out
    assert "is not timed: " in printed.err
