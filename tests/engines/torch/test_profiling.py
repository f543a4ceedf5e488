"""``profile=true`` and ``trainer.float32_matmul_precision``: what they leave, and what they do not change."""

from __future__ import annotations

import csv
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cab.config.compose import compose
from cab.records.record import Record
from cab.runner.cell import Cell
from cab.runner.launch import run_sweeps
from cab.runner.processes import Processes
from engines.torch.profiling import PARTS, STEPS, StepProfile
from tests.helpers.runs.fixtures import TROUBLED
from tests.helpers.runs.troubled import Troubled

CELL = ["task=lstf", "dataset=synthetic", "backbone=informer", "attention=abc", "pattern=CS", "preset=smoke"]
CELL += ["device=cpu"]


@pytest.mark.slow
def test_a_profile_is_a_table_and_a_trace_and_changes_no_score(tmp_path):
    records = []
    for name in ("plain", "profiled"):
        overrides = [*CELL, f"results_dir={tmp_path / name}", f"profile={str(name == 'profiled').lower()}"]
        record = run_sweeps([overrides], is_sweep=False).outcomes[0].record
        records.append(record)
    plain, profiled = records
    assert plain.hash == profiled.hash
    assert plain.metrics == profiled.metrics
    assert not (tmp_path / "plain" / plain.hash / "profile.csv").exists()
    folder = tmp_path / "profiled" / profiled.hash
    with (folder / "profile.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    parts = {row["name"]: row for row in rows if row["kind"] == "part"}
    assert list(parts) == [*PARTS, "other", "step"]
    seconds = {name: float(row["seconds"]) for name, row in parts.items()}
    step = seconds.pop("step")
    assert sum(seconds.values()) == pytest.approx(step, rel=1e-3)
    assert min(seconds["forward"], seconds["backward"], seconds["optimizer"]) > 0
    assert sum(float(row["share"]) for row in parts.values()) == pytest.approx(2.0, abs=0.01)
    operators = [row["name"] for row in rows if row["kind"] == "operator"]
    assert any("mm" in name for name in operators)
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert sum(event.get("name") == "cab::step" and event.get("ph") == "X" for event in events) == STEPS


def test_a_run_of_one_step_has_a_profile(tmp_path):
    overrides = [*TROUBLED, f"results_dir={tmp_path}", "profile=true", "trainer.max_steps=1"]
    assert run_sweeps([[*overrides, "trainer.validate_every=1"]], is_sweep=False).exit_status == 0
    assert len(list(tmp_path.glob("*/profile.csv"))) == 1


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_profile_on_a_gpu_has_a_memory_snapshot(kind, tmp_path, monkeypatch, caplog):
    """On a machine without GPUs: the calls to torch are recorded."""
    called: list[Any] = []
    monkeypatch.setattr("torch.cuda.synchronize", lambda _: None)
    monkeypatch.setattr("torch.cuda.memory._record_memory_history", lambda **options: called.append(options))
    monkeypatch.setattr("torch.cuda.memory._dump_snapshot", called.append)
    run: Any = SimpleNamespace(folder=tmp_path, device=torch.device(kind), processes=Processes())
    order: Any = SimpleNamespace(num_steps=2, start=0)
    with caplog.at_level("INFO"):
        profile = StepProfile(run, order)
        for _ in range(2):
            with profile.timed("step"):
                for part in PARTS:
                    with profile.timed(part):
                        torch.ones(1).add(1)
    assert (tmp_path / "trace.json").exists()
    assert called == ([{}, str(tmp_path / "memory.pickle"), {"enabled": None}] if kind == "cuda" else [])
    assert ("no memory snapshot" in caplog.text) == (kind == "cpu")


def test_products_are_as_exact_as_the_cell_says(tmp_path, monkeypatch):
    seen = []
    loss = Troubled.loss
    note = lambda self, *given: seen.append(torch.get_float32_matmul_precision()) or loss(self, *given)  # noqa: E731
    monkeypatch.setattr(Troubled, "loss", note)
    overrides = [*TROUBLED, f"results_dir={tmp_path}", "trainer.float32_matmul_precision=high"]
    record = run_sweeps([overrides], is_sweep=False).outcomes[0].record
    assert set(seen) == {"high"}
    assert torch.get_float32_matmul_precision() == "highest"
    assert Record.read(tmp_path / f"{record.hash}.json").config["trainer"]["float32_matmul_precision"] == "high"


def test_the_precision_identifies_the_cell_and_the_workers_do_not():
    usual = Cell.from_config(compose(CELL))
    high = Cell.from_config(compose([*CELL, "trainer.float32_matmul_precision=high"]))
    assert high.hash != usual.hash
    assert Cell.from_config(compose([*CELL, "trainer.num_workers=3"])).hash == usual.hash
