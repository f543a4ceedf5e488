"""What the steps measure on a GPU, on a CPU that is called cuda: no name or argument is wrong there."""

import dataclasses
import signal
import warnings
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cab.efficiency import third_party
from cab.efficiency.benchmark import Plan
from cab.efficiency.cost import Cost
from cab.errors import Preempted
from cab.files.text_table import read_csv
from cab.registry.build import without_memory
from cab.runner import calibration
from cab.runner.engine import make_backbone
from cab.verification.on_demand.kernels import MARGIN
from engines.torch.checkpoints import Checkpoints
from tests.helpers.tasks.records import few_examples
from tools.gpu import measurements, supervisor


class Called(str):
    """The text ``cpu``, which equals ``cuda`` only."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "cuda"


DEVICE = Called("cpu")
TABLE = list(read_csv(measurements.STORED))


@pytest.fixture(autouse=True)
def _cpu_called_cuda(monkeypatch):
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "set_sync_debug_mode"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 2**30)
    monkeypatch.setattr(measurements, "capture_graph", lambda call: call)


def test_launches_are_timed_one_by_one_and_as_a_graph():
    rows = list(measurements._launches(DEVICE, count=3))
    assert [name for name, _, unit in rows if unit == "us"] == ["launch", "launch in a graph"]
    assert all(value > 0 for _, value, _ in rows)


def test_a_gpu_that_fails_is_lost(monkeypatch):
    assert measurements.is_usable(DEVICE)

    def fail() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", fail)
    assert not measurements.is_usable(DEVICE)


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_layer_is_checked(tmp_path):
    [row] = measurements.correctness("layer gla", DEVICE, tmp_path)
    assert row["passed"]
    assert row["error"] == pytest.approx(row["limit"] / MARGIN)  # type: ignore[operator]


@pytest.mark.parametrize("item", supervisor.STEPS["kernels"].items)
def test_the_table_of_backends_shows_the_rows_that_differ(item, tmp_path, monkeypatch):
    """FlexAttention has rows of its own, of all patterns."""
    stored = {tuple(row[name] for name in ("attention", "pattern", "precision")): row for row in TABLE}

    def found(*place: str, sees_sdpa: bool) -> dict[str, str]:
        row = stored[place[:3]]
        changes = place[:3] in (("gla", "CS", "autocast"), ("local", "NS", "float32"))
        here = {"backends": "recurrence triton" if changes else row["backends"], "sdpa": row["sdpa"]}
        return here if sees_sdpa else {"backends": here["backends"]}

    monkeypatch.setattr(measurements, "_backends", found)
    [*rows, counts] = measurements.kernels(item, "cuda", tmp_path)
    changed = {"CS": ["gla"], "flex": ["local"]}.get(item, [])
    assert [row["attention"] for row in rows] == changed
    assert all(row["backends"] == "recurrence triton" != row["backends stored"] for row in rows)
    has_flex = [row for row in TABLE if "flex" in row["backends"]]
    total = len(has_flex) if item == "flex" else sum(row["pattern"] == item for row in TABLE if row not in has_flex)
    assert counts["attention"] == f"{total - len(changed)} of {total} rows"


@pytest.mark.filterwarnings("ignore:called a synchronizing")
def test_training_steps_have_times_kernels_and_waits(monkeypatch):
    """Kernels of 3 ms in two steps; a warning per forward pass in the first quarter of the steps."""
    event = SimpleNamespace(device_type=SimpleNamespace(name="CUDA"), is_user_annotation=False)
    event.time_range = SimpleNamespace(elapsed_us=lambda: 3000.0)
    region = SimpleNamespace(**{**vars(event), "is_user_annotation": True})
    profiler = SimpleNamespace(start=lambda: None, stop=lambda: None, events=lambda: [event, event, region])
    monkeypatch.setattr(torch.profiler, "profile", lambda **_: profiler)
    monkeypatch.setattr(calibration, "choose_device", lambda *_: torch.device("cpu"))
    with few_examples():
        cell = measurements._cell(["task=lm", "pattern=CS", "attention=vanilla", "preset=smoke"], "cpu")
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
    assert "gpu/test_gpu_branches.py:" in str(row["at"])


@pytest.mark.parametrize("item", supervisor.STEPS["costs"].items)
def test_costs_have_a_row_per_form_and_length(item, tmp_path, monkeypatch):
    """Plans are checked; a form whose cost in a phase is missing has its status there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(measurements, "measure", costs_of)
    monkeypatch.setattr(third_party, "is_installed", lambda _: True)
    rows = {(str(row["attention"]), row["tokens"]): row for row in measurements.costs(item, "cuda", tmp_path)}
    short = ["@flash", "@cudnn", "@efficient"] if item == "vanilla" else ["@pytorch"]
    layers = [] if item in ("vanilla", "local", "ssd", "mamba3") else ["@fla-layer"]
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


def test_lm_has_the_size_of_the_paper():
    """122,319,360 parameters (Table 14), blocks of 8,192 tokens, at least four."""
    with few_examples():
        cell = measurements.lm_cell("vanilla", (), "cpu")
    with without_memory():
        network = make_backbone(cell, has_memory=False)
    assert sum(weights.numel() for weights in network.parameters()) == 122_319_360
    assert cell.task.training_set[0].shape == (8193,)
    assert len(cell.task.training_set) >= 4  # type: ignore[arg-type]


def test_a_run_of_table_3_that_is_stopped_is_out_of_time(tmp_path, monkeypatch):
    """Its configuration is that of preset paper, seed and data set are those of the item."""
    configs: list[Mapping[str, Any]] = []

    def stop(config: Mapping[str, Any], *, command: str) -> None:
        assert "attention=abc seed=3" in command
        configs.append(config)
        raise Preempted(signal.SIGTERM)

    monkeypatch.setattr(measurements, "run_cell", stop)
    for device in ("cuda", "cpu"):
        with pytest.raises(KeyboardInterrupt):
            measurements.table3("3 abc ettm1 S", device, tmp_path)
    on_gpu, on_cpu = (config["trainer"] for config in configs)
    assert (on_gpu["max_epochs"], on_gpu["batch_size"], on_gpu["patience"]) == (6, 32, 3)
    assert (on_cpu["max_epochs"], on_cpu["max_steps"]) == (None, 2)
    assert configs[0]["results_dir"] == str(tmp_path / "records")
