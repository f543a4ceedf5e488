"""Every (task, data set, backbone, pattern) runs from `cab run`, in preset smoke.

The series of LSTF are generated, in the official layout: what differs between them is how they are read. The probes
share their protocol, and their generators have tests of their own; two of them run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cab.cli.main import main
from cab.registry.registries import TASKS
from tests.helpers.official_layout import LAYOUTS
from tests.helpers.tasks.records import few_examples

ATTENTIONS_OF = {"NS": "lara", "CS": "local", "NC": "performer", "CC": "cosformer"}

REAL: dict[str, list[str]] = {
    "pg19": ["task.vocab_size=2000"],
    "multi_news": [],
    "pcn": ["task.list_file=sample.json", "task.sample_part=train", "trainer.batch_size=1"],
    "ffhq": ["task.num_held_out=2", "task.low_resolution=16", "task.high_resolution=128", "task.diffusion_steps=2"],
    "ljspeech": ["task.num_held_out=4"],
}
"""Real samples, and what a sample of its size needs. ECL's official file is not among them: its loader has tests of its
own on generated files."""
EXPENSIVE = {"ffhq": ["trainer.max_steps=2", "trainer.batch_size=1", "trainer.validate_every=2"]}

ARENA = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
GLUE = ("cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "stsb")
PROBES = set(TASKS.get("probe").datasets) - {"recall", "compression"}
LEFT_OUT = {"ecl", "wikitext103", "wikitext2", *GLUE, *ARENA, *PROBES}
"""Of most there is no sample of every split."""

CELLS = [
    (task.name, dataset, backbone, str(pattern))
    for task in TASKS
    for dataset in task.datasets
    if dataset not in LEFT_OUT
    for backbone, patterns in task.backbones.items()
    for pattern in patterns
    if task.has_pattern(dataset, pattern) and (dataset not in LAYOUTS or dataset == "etth1" or str(pattern) == "NC")
]


def is_long(task: str, dataset: str, backbone: str, pattern: str) -> bool:
    """Data sets in files, patterns but one of each network, and of the probes and of the arena all but one."""
    is_another = task in ("probe", "lra") and dataset not in ("recall", "listops_synthetic")
    is_another |= pattern != str(TASKS.get(task).backbones[backbone][0])
    return task == "tts" or dataset in (*REAL, *LAYOUTS) or is_another


@pytest.fixture
def _little_data() -> Iterator[None]:
    yield from few_examples()


@pytest.mark.usefixtures("_little_data")
@pytest.mark.parametrize(
    ("task", "dataset", "backbone", "pattern"),
    [pytest.param(*cell, marks=pytest.mark.slow if is_long(*cell) else ()) for cell in CELLS],
)
def test_it_runs(
    task: str,
    dataset: str,
    backbone: str,
    pattern: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CAB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    arguments = ["run", "-m", f"task={task}", f"dataset={dataset}", f"backbone={backbone}", f"pattern={pattern}"]
    arguments += [f"attention={ATTENTIONS_OF[pattern]}", "preset=smoke", "device=cpu"]
    if dataset in (*REAL, *LAYOUTS):
        root = request.getfixturevalue("samples" if dataset in REAL else "official_layout")
        arguments.append(f"data_root={root}")
    assert main([*arguments, *REAL.get(dataset, []), *EXPENSIVE.get(dataset, []), f"results_dir={tmp_path}"]) == 0
    [path] = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert record["status"] == "finished"
    check(record)
    assert not list((tmp_path / record["hash"]).glob("step-*"))
    pictures = {path.name for path in (tmp_path / record["hash"]).iterdir() if path.suffix in (".png", ".txt")}
    has_pictures = task != "probe" and dataset.split("_")[0] not in ("listops", "text", "retrieval")
    assert bool(pictures) == has_pictures


def check(record: dict[str, Any]) -> None:
    """Every primary metric is a number, and the trivial baselines have it too."""
    primary = [metric["name"] for metric in record["metrics"] if metric["primary"]]
    assert primary
    for metric in record["metrics"]:
        if metric["primary"]:
            assert math.isfinite(metric["value"]), metric
    assert record["baselines"]
    for scores in record["baselines"].values():
        assert set(primary) & set(scores)
