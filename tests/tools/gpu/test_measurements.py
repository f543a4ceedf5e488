"""What the steps do on a GPU alone, on a CPU that is called cuda: no name or argument is wrong there."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cab.efficiency import third_party
from cab.efficiency.benchmark import Plan
from cab.efficiency.cost import Cost
from cab.registry.build import without_memory
from cab.runner.cell import Cell
from cab.runner.engine import make_backbone
from cab.verification.kernels import MARGIN
from engines.torch.checkpoints import Checkpoints
from tools.gpu import measurements


class Called(str):
    """The text ``cpu``, which equals ``cuda`` only."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "cuda"


DEVICE = Called("cpu")


@pytest.fixture(autouse=True)
def _cpu_called_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, Callable[..., Any]] = {
        **dict.fromkeys(
            ("synchronize", "empty_cache", "reset_peak_memory_stats", "set_sync_debug_mode"), lambda *_: None
        ),
        "max_memory_allocated": lambda: 2**30,
    }
    for name, call in calls.items():
        monkeypatch.setattr(torch.cuda, name, call)


def test_lm_has_the_size_of_the_paper() -> None:
    """122,319,360 parameters (Table 14), blocks of 8,192 tokens."""
    cell = measurements.lm_cell("vanilla", (), "cpu")
    with without_memory():
        network = make_backbone(cell, has_memory=False)
    assert sum(weights.numel() for weights in network.parameters()) == 122_319_360
    assert cell.task.training_set[0].shape == (8193,)


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_layer_is_checked(tmp_path: Path) -> None:
    [row] = measurements.correctness("layer gla", DEVICE, tmp_path)
    assert row["passed"]
    assert row["error"] == pytest.approx(row["limit"] / MARGIN)  # type: ignore[operator]


def small_lm() -> Cell:
    return measurements._cell(["task=lm", "pattern=CS", "attention=vanilla", "preset=smoke"], "cpu")


@pytest.mark.filterwarnings("ignore:called a synchronizing")
def test_training_steps_have_times_kernels_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of 3 ms in two steps; a warning per forward pass in the first quarter of the steps."""
    event = SimpleNamespace(device_type=SimpleNamespace(name="CUDA"), is_user_annotation=False)
    event.time_range = SimpleNamespace(elapsed_us=lambda: 3000.0)
    region = SimpleNamespace(**{**vars(event), "is_user_annotation": True})
    profiler = SimpleNamespace(start=lambda: None, stop=lambda: None, events=lambda: [event, event, region])
    monkeypatch.setattr(torch.profiler, "profile", lambda **_: profiler)
    cell = small_lm()
    loss = cell.task.loss

    def waits(*arguments: Any) -> Any:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        return loss(*arguments)

    monkeypatch.setattr(cell.task, "loss", waits)
    saved: list[int] = []
    monkeypatch.setattr(Checkpoints, "save", lambda *_, step, **__: saved.append(step))
    row = measurements._train(cell, 8, DEVICE)
    assert row["busy"] == pytest.approx(3.0 / row["ms per step"])  # type: ignore[operator]
    assert row["GiB"] == 1.0
    assert saved == [8], "a checkpoint waits for the GPU"
    assert row["waits per step"] >= 1  # type: ignore[operator]
    assert "gpu/test_measurements.py:" in str(row["at"])


@pytest.mark.parametrize("item", ["vanilla", "gla", "mamba3"])
def test_costs_have_a_row_per_form_and_length(item: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are checked; a form whose cost in a phase is missing has its status there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(measurements, "measure", costs_of)
    monkeypatch.setattr(third_party, "is_installed", lambda _: True)
    rows = {(str(row["attention"]), row["tokens"]): row for row in measurements.costs(item, "cuda", tmp_path)}
    short = ["@flash", "@cudnn", "@efficient"] if item == "vanilla" else ["@pytorch"]
    layers = ["@fla-layer"] if item == "gla" else []
    forms = [(f"{item}{form}", 4096) for form in ("", *short, *layers)]
    assert set(rows) == {*forms, *((f"{item}{form}", 16_384) for form in ["", *(short * (item == "vanilla")), *layers])}
    first = {"attention": item, "tokens": 4096, "forward": 2.0, "graph": "oom", "why": "too much", "both": 2.0}
    assert rows[item, 4096] == first | {"of softmax": 3.0, "busy": 0.5, "roof": 0.25, "backends": "fla pytorch"}
    [row, *others] = measurements.decoding(item, "cuda", tmp_path)
    assert (row["attention"], row["step"], row["graph"], others) == (item, 2.0, "oom", [])
    assert len([*tmp_path.glob("costs/*.csv")]) == 3


def costs_of(plan: Plan, **_: object) -> Iterator[Cost]:
    for phase in plan.phases:
        for label in [subject.label for group in (plan.attentions, plan.third_party) for subject in group]:
            cost = Cost(label, "CS", phase, plan.lengths[0])
            if phase.endswith("-graph"):
                yield dataclasses.replace(cost, status="oom", detail="too much")
                continue
            facts = {"relative_to_softmax": 3.0, "busy": 0.5, "roof_share": 0.25}
            texts = {"backends": "recurrence=fla (triton: not here); softmax=pytorch"}
            yield dataclasses.replace(cost, seconds=0.002, **facts, **texts)  # type: ignore[arg-type]
