"""Every (generated data set, backbone, pattern) of every task runs from `cab run`, in preset smoke."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.registry.names import is_generated
from cab.registry.registries import TASKS
from tests.helpers.tasks.records import few_examples

ATTENTIONS_OF = {"NS": "lara", "CS": "local", "NC": "performer", "CC": "cosformer"}
CELLS = [
    (task.name, dataset, backbone, str(pattern))
    for task in TASKS
    for dataset in (task.datasets[:1] if task.name == "probe" else task.datasets)  # which share their protocol
    if is_generated(dataset) or task.name == "probe"
    for backbone, patterns in task.backbones.items()
    for pattern in patterns
    if task.has_pattern(dataset, pattern)
]


few = pytest.fixture(few_examples)
REAL = {
    "lm": "dataset=pg19 task.vocab_size=2000",
    "sum": "dataset=multi_news",
    "pcc": "dataset=pcn task.list_file=sample.json task.sample_part=train trainer.batch_size=1",
    "sr": "dataset=ffhq task.num_held_out=2 task.diffusion_steps=2 trainer.max_steps=2 trainer.batch_size=1",
    "tts": "dataset=ljspeech task.num_held_out=4",
}
"""Samples of the official files, and what a sample of its size needs."""


def check_run(folder: Path, *arguments: str) -> None:
    assert main(["run", "-m", *arguments, "preset=smoke", "device=cpu", f"results_dir={folder}"]) == 0
    [path] = folder.glob("*.json")
    record = json.loads(path.read_text())
    assert record["status"] == "finished"
    primary = {metric["name"]: metric["value"] for metric in record["metrics"] if metric["primary"]}
    assert primary
    assert all(map(math.isfinite, primary.values()))
    assert record["baselines"]
    assert all(primary.keys() & scores.keys() for scores in record["baselines"].values())


@pytest.mark.slow
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(("task", "dataset", "backbone", "pattern"), CELLS)
def test_it_runs(task: str, dataset: str, backbone: str, pattern: str, tmp_path: Path) -> None:
    cell = [f"task={task}", f"dataset={dataset}", f"backbone={backbone}", f"pattern={pattern}"]
    check_run(tmp_path, *cell, f"attention={ATTENTIONS_OF[pattern]}")


@pytest.mark.slow
@pytest.mark.parametrize("task", REAL)
def test_samples_of_official_files_run(task: str, samples: Path, tmp_path: Path) -> None:
    backbone, patterns = next(iter(TASKS.get(task).backbones.items()))
    cell = [f"task={task}", *REAL[task].split(), f"backbone={backbone}", f"pattern={patterns[0]}"]
    check_run(tmp_path, *cell, f"attention={ATTENTIONS_OF[str(patterns[0])]}", f"data_root={samples}")
