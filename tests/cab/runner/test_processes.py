"""Two processes do what one does: ddp, fsdp, each task after a kill, and who writes the record."""

import functools
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cab.runner import processes as module
from cab.runner.processes import Processes, find_processes, without_launcher
from tests.helpers.command import ROOT, cab, records, run_cab, the_record

SETTINGS = ["dataset=synthetic", "attention=vanilla", "preset=smoke", "device=cpu"]
EXACT = [*SETTINGS, "backbone.dropout=0", "trainer.max_steps=12", "trainer.validate_every=3"]
LSTF = [*EXACT, "task=lstf", "pattern=NC", "trainer.batch_size=16"]
LM = [*EXACT, "task=lm", "pattern=CS", "trainer.batch_size=8", "backbone.attention_dropout=0"]


def record(folder: Path, cell: Sequence[str], *overrides: str, processes: int, warns: bool = True) -> dict[str, Any]:
    process = run_cab(*cell, *overrides, f"results_dir={folder}", processes=processes)
    assert process.returncode == 0, process.stderr
    assert warns or "Warning" not in process.stderr
    return the_record(folder)


def kill(folder: Path, cell: Sequence[str], at: str) -> None:
    """Kill a process of two when it writes a file."""
    mark = folder.with_name(f"{folder.name}-{at}")
    assert run_cab(*cell, f"results_dir={folder}", processes=2, stop=f"kill {at} {mark}").returncode != 0
    assert mark.exists(), "it was not killed"
    assert not records(folder)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The record of a cell in one process, which is run once."""
    return functools.cache(lambda *cell: record(tmp_path_factory.mktemp("alone"), cell, processes=1))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("cell", [LSTF, [*LM, "backbone=gpt2_reversible"]], ids=["batch norm", "reversible layers"])
def test_two_processes_train_as_one(cell, strategy, alone, tmp_path):
    one, two = alone(*cell), record(tmp_path, cell, f"trainer.strategy={strategy}", processes=2)
    assert (two["hash"], two["cost"]["processes"]) == (one["hash"], 2)
    assert [entry["step"] for entry in two["history"]] == [3, 6, 9, 12]
    for kind, bounds in (("loss", {"rel": 0, "abs": 1e-4}), ("validation", {"rel": 1e-3})):
        expected = [entry[kind] for entry in one["history"]]
        assert [entry[kind] for entry in two["history"]] == pytest.approx(expected, **bounds)
    assert two["metrics"][0]["value"] == pytest.approx(one["metrics"][0]["value"], rel=1e-3)


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
    module._name_unused.cache_clear()
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
        module._init_slurm_rendezvous()
        assert os.environ["MASTER_ADDR"] == "node1"
        ports.add(os.environ["MASTER_PORT"])
    assert len(ports) == 8


@pytest.mark.slow
def test_a_run_of_two_processes_resumes_in_two_and_in_one(tmp_path):
    """From the shards of both: in two bit-identical to a run that was not killed, in one the same but for rounding."""
    cell = [*LM, "trainer.checkpoint_every=1", "trainer.strategy=fsdp"]
    free = record(tmp_path / "free", cell, processes=2)
    for count in (2, 1):
        folder = tmp_path / str(count)
        kill(folder, cell, "step-00000004.ckpt")
        names = sorted(path.name for path in folder.glob("*/step-*"))
        shards = [f"step-0000000{step}.{rank}-of-2.shard" for step in (2, 3, 4) for rank in (0, 1)]
        assert names == sorted([*shards, "step-00000002.ckpt", "step-00000003.ckpt"])
        whole, part = (path.stat().st_size for path in sorted(folder.glob("*/step-00000003.*"))[::-2])
        assert whole < part, "the weights are in the shards alone"
        assert "resuming from step 3" in run_cab(*cell, f"results_dir={folder}", processes=count).stderr
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
    options = {"rank": 3, "world_size": 4, "timeout": module.TIMEOUT, **bound}
    assert called == [*([device] if bound else []), (backend, options)]


SHORT = [*SETTINGS, "task.limit=6", "task.evaluation_batch_size=2", "trainer.max_steps=4", "trainer.batch_size=4"]
SHORT += ["trainer.checkpoint_every=1", "trainer.validate_every=2", "trainer.checkpoint_selection=best"]
SHORT.append("trainer.log_every=1")
TRAINING, EVALUATION = "step-00000003.ckpt", "-test.jsonl"
TASKS = {
    "lm": (["pattern=CS", "task.context_lengths=[64]"], [EVALUATION]),
    "lstf": (["pattern=NC"], [TRAINING, EVALUATION]),
    "mlm": (["pattern=NS"], [TRAINING]),
    "pcc": (["pattern=NC"], [TRAINING, EVALUATION]),
    "sr": (["pattern=NS"], [TRAINING, EVALUATION]),
    "sum": (["pattern=CC"], [EVALUATION]),
    "tts": (["pattern=NS", "backbone=transformer_tts"], [TRAINING]),
}
"""The options of each task, and the files at which a process of two is killed."""
HAS_BATCH_NORM = ("lstf", "pcc", "tts")
"""Tasks whose networks normalize over a batch: that of two processes, and a micro-batch of one."""


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_two_processes_that_are_killed_score_what_one_scores(task, tmp_path):
    """Killed in training or evaluation; bit-identical to one process with the same micro-batches.

    With batch norm, training is that of two processes that are not killed, and only the evaluation that of one.
    """
    options, kills = TASKS[task]
    cell, has_batch_norm = [*SHORT, f"task={task}", *options], task in HAS_BATCH_NORM
    micro, count = ([], 2) if has_batch_norm else (["trainer.micro_batch_size=2"], 1)
    expected = record(tmp_path / "free", cell, *micro, processes=count, warns=False)
    for at in kills:
        kill(tmp_path / "two", cell, at)
    two = record(tmp_path / "two", cell, processes=2, warns=False)
    assert two["metrics"] == expected["metrics"]
    assert [entry["validation"] for entry in two["history"]] == [entry["validation"] for entry in expected["history"]]
    assert (two["cost"]["processes"], two["cost"]["steps"]) == (2, 4)
    if has_batch_norm:
        rows = cab("evaluate", str(tmp_path / "two" / f"{two['hash']}.json"), cwd=ROOT).stdout.splitlines()[1:]
        assert {row.split()[0] for row in rows} == {metric["name"] for metric in two["metrics"]}
        assert [row for row in rows if row.split()[1] != row.split()[2]] == []
