"""Hydra alone composes a run: its own functions and command line see the groups of the registries."""

from __future__ import annotations

from pathlib import Path

import hydra
import pytest
import yaml
from omegaconf import OmegaConf

from cab.config.compose import compose
from tests.helpers.runs.processes import records, run_module

CELL = ["task=probe", "dataset=recall", "backbone=mixer", "pattern=CS", "preset=smoke"]
EXPERIMENT = """
# @package _global_
defaults: [override /task: probe, override /dataset: recall, override /backbone: mixer, override /preset: smoke]
pattern: CS
task: {examples: 64, test_examples: 16}
trainer: {max_steps: 2}
device: cpu
"""


@pytest.mark.parametrize("attention", ["abc", "vanilla"])
def test_hydra_composes_the_same_configuration(attention: str) -> None:
    with hydra.initialize(config_path=None, version_base="1.3"):
        composed = hydra.compose("run", [*CELL, f"attention={attention}"])
    assert OmegaConf.to_container(composed, resolve=True) == compose([*CELL, f"attention={attention}"])


def test_a_list_is_no_stack_for_hydra() -> None:
    done = run_module("cab.hydra_app", *CELL, "attention=[linear,vanilla]")
    assert done.returncode == 1
    assert "write a stack in quotes" in done.stderr


@pytest.mark.slow
def test_a_sweep_of_an_experiment(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(EXPERIMENT.lstrip())
    settings = ["--config-dir", tmp_path, "experiment=mine", f"hydra.sweep.dir={tmp_path}/sweep"]
    shown = run_module("cab.hydra_app", *settings, "attention=abc", "--cfg", "job", "--resolve")
    assert yaml.safe_load(shown.stdout)["trainer"]["max_steps"] == 2
    done = run_module("cab.hydra_app", "-m", *settings, "attention=vanilla,linear", f"results_dir={tmp_path}/results")
    assert done.returncode == 0, done.stderr
    found = records(tmp_path / "results")
    assert sorted(record["cell"]["attention"] for record in found) == ["linear", "vanilla"]
    assert all("cab.hydra_app" in record["command"] for record in found)
