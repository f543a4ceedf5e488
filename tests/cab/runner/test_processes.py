"""Two processes do what one does: batch norm, ddp, fsdp, and who writes the record."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cab.runner.processes import (
    TIMEOUT,
    Processes,
    _init_slurm_rendezvous,
    _name_unused,
    find_processes,
    without_launcher,
)
from tests.helpers.command import records, run_cab, run_module, the_record

SETTINGS = ["dataset=synthetic", "attention=vanilla", "preset=smoke", "device=cpu", "backbone.dropout=0"]
SETTINGS += ["trainer.max_steps=12", "trainer.validate_every=3"]
CELL = [*SETTINGS, "task=lstf", "pattern=NC", "trainer.batch_size=16"]
LM = [*SETTINGS, "task=lm", "pattern=CS", "trainer.batch_size=8", "backbone.attention_dropout=0"]


def record(folder: Path, *overrides: str, processes: int, cell: list[str] = CELL) -> dict[str, Any]:
    process = run_cab(*cell, *overrides, f"results_dir={folder}", processes=processes)
    assert process.returncode == 0, process.stderr
    return the_record(folder)


@pytest.mark.slow
def test_batch_norm_has_the_statistics_of_all_processes(tmp_path):
    process = run_module("tests.helpers.runs.two_processes", tmp_path / "worst.json", processes=2)
    assert process.returncode == 0, process.stderr
    worst = json.loads((tmp_path / "worst.json").read_text())
    assert set(worst) == {"output", "gradient", "state", "evaluation"}
    assert max(worst.values()) < 1e-5, worst


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return record(tmp_path_factory.mktemp("alone"), processes=1)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_train_as_one(strategy, alone, tmp_path):
    both = record(tmp_path, f"trainer.strategy={strategy}", processes=2)
    assert both["hash"] == alone["hash"]
    assert both["cost"]["processes"] == 2
    assert [entry["step"] for entry in both["history"]] == [3, 6, 9, 12]
    for one, two in zip(alone["history"], both["history"], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-4)
    assert both["metrics"][0]["value"] == pytest.approx(alone["metrics"][0]["value"], abs=1e-3)


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}
BATCH = {"SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}  # also the variables of srun
SRUN = {**BATCH, "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("variables", "expected", "unused"),
    [
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "x"}, Processes(1, 4, 0), ""),
        ({"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "worker-0"}, Processes(1, 4, 0), ""),  # Kubernetes
        ({**TORCHRUN, **SRUN, "TORCHELASTIC_RUN_ID": "x"}, Processes(1, 4, 0), ""),
        (SRUN, Processes(2, 4, 1), ""),
        (BATCH, Processes(), "start it with `srun cab run ...`"),
        ({**BATCH, "SLURM_STEP_ID": "4294967291"}, Processes(), "start it with `srun cab run ...`"),  # of a shell
        (TORCHRUN, Processes(), "RANK=1 and WORLD_SIZE=4 of torchrun are not used"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, Processes(), "OMPI_COMM_WORLD_RANK=1"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, Processes(), "PMI_RANK=1 and PMI_SIZE=2"),
        ({"WORLD_SIZE": "1"}, Processes(), ""),
    ],
)
def test_ranks_of_every_launcher_are_used_or_named(variables, expected, unused, monkeypatch, caplog):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    _name_unused.cache_clear()
    assert find_processes() == find_processes() == expected
    assert len(caplog.messages) == bool(unused)  # once
    assert unused in caplog.text
    for name in set(os.environ) - set(without_launcher(of_slurm=True)):
        monkeypatch.delenv(name)
    assert find_processes() == Processes()


def test_parallel_steps_of_a_job_have_ports_of_their_own(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="node1\n"))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    ports = set()
    for step in range(8):
        monkeypatch.setenv("SLURM_STEP_ID", str(step))
        monkeypatch.setenv("MASTER_ADDR", "")
        monkeypatch.setenv("MASTER_PORT", "")
        _init_slurm_rendezvous()
        assert os.environ["MASTER_ADDR"] == "node1"
        ports.add(os.environ["MASTER_PORT"])
    assert len(ports) == 8


@pytest.mark.slow
def test_a_run_of_two_processes_resumes_in_two_and_in_one(tmp_path):
    """From the shards of both: in two bit-identical to a run that was not killed, in one the same but for rounding."""
    options = [*LM, "trainer.checkpoint_every=1", "trainer.strategy=fsdp"]
    free = record(tmp_path / "free", processes=2, cell=options)
    for count in (2, 1):
        folder = tmp_path / str(count)
        stop = f"kill step-00000004.ckpt {folder.with_name(f'killed-{count}')}"
        assert run_cab(*options, f"results_dir={folder}", processes=2, stop=stop).returncode != 0
        assert not records(folder)
        names = sorted(path.name for path in folder.glob("*/step-*"))
        shards = [f"step-0000000{step}.{rank}-of-2.shard" for step in (2, 3, 4) for rank in (0, 1)]
        assert names == sorted([*shards, "step-00000002.ckpt", "step-00000003.ckpt"])
        whole, part = (path.stat().st_size for path in sorted(folder.glob("*/step-00000003.*"))[::-2])
        assert whole < part, "the weights are in the shards alone"
        process = run_cab(*options, f"results_dir={folder}", processes=count)
        assert "resuming from step 3" in process.stderr
        resumed = the_record(folder)
        assert (resumed["cost"]["processes"], resumed["cost"]["steps"]) == (count, 12)
        assert not list(folder.glob("*/step-*"))
        if count == 2:
            assert (resumed["history"], resumed["metrics"]) == (free["history"], free["metrics"])
        losses = [[entry["loss"] for entry in run["history"]] for run in (free, resumed)]
        assert losses[1] == pytest.approx(losses[0], abs=1e-4)


@pytest.mark.parametrize(("kind", "backend"), [("cpu", "gloo"), ("cuda", "nccl")])
def test_each_process_uses_its_own_gpu(kind, backend, monkeypatch):
    """On a machine without GPUs: the calls to torch are recorded."""
    device, called = torch.device(kind, 1) if kind == "cuda" else torch.device("cpu"), list[Any]()
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setattr("torch.cuda.set_device", called.append)
    monkeypatch.setattr("torch.distributed.init_process_group", lambda name, **options: called.append((name, options)))
    Processes(rank=3, count=4, local_rank=1).connect(device)
    bound: dict[str, Any] = {"device_id": device} if kind == "cuda" else {}
    options = {"rank": 3, "world_size": 4, "timeout": TIMEOUT, **bound}
    assert called == [*([device] if bound else []), (backend, options)]


@pytest.mark.slow
def test_reversible_layers_of_two_processes_are_those_of_one(tmp_path):
    losses = []
    for strategy, count in (("ddp", 1), ("ddp", 2), ("fsdp", 2)):
        overrides = [f"trainer.strategy={strategy}", "backbone=gpt2_reversible"]
        run = record(tmp_path / f"{strategy}{count}", *overrides, processes=count, cell=LM)
        losses.append([entry["loss"] for entry in run["history"]])
    assert losses[1:] == [pytest.approx(losses[0], abs=1e-4)] * 2
