"""Task lm_recurrent: what it refuses, and an interrupted run that resumes bit-exactly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cab import UserError
from cab.config.compose import compose
from cab.runner.cell import Cell
from cab.runner.processes import Processes
from engines.torch import check, checkpoints
from engines.torch.loop import make_order
from engines.torch.parallel import SingleProcess
from engines.torch.recurrent_memory import RecurrentMemory
from tasks.lm.recurrent import RecurrentLMTask
from tests.helpers.runs.troubled import trained
from tests.helpers.tasks.layouts import write_books

CELL = ["task=lm_recurrent", "dataset=pg19", "backbone=gpt2", "pattern=CS", "preset=smoke", "device=cpu"]
RECURRENT = [*CELL, "attention=transformer_xl", "attention.segment=32", "attention.memory=64"]
RECURRENT += ["backbone.positions=none", "backbone.dropout=0.2"]
RECURRENT += ["task.block_len=32", "task.context_lengths=[64]", "task.memory_length=32"]
RECURRENT += ["trainer.validate_every=null", "trainer.checkpoint_selection=last"]


def test_the_memory_length_names_the_variant():
    assert Cell.from_config(compose(RECURRENT)).key["config_variant"] == "memory 32"


def test_several_processes_are_refused():
    with pytest.raises(UserError, match="without torchrun or srun"):
        check(Cell.from_config(compose(RECURRENT)), Processes(rank=0, local_rank=0, count=2))


def test_more_rows_than_blocks_are_refused():
    cell, processes = Cell.from_config(compose(RECURRENT)), Processes(rank=0, local_rank=0, count=1)
    run = SimpleNamespace(cell=cell, processes=processes, observer=None)
    assert make_order(9, run).in_rows
    with pytest.raises(UserError, match=r"the training set has 3 blocks, trainer\.batch_size is 4"):
        make_order(3, run)


def test_memories_are_those_of_the_rows_however_they_are_cut():
    rows = torch.arange(12.0).view(4, 3)
    two, four, seen = RecurrentMemory(2), RecurrentMemory(4), []

    def recurrent_loss(_, batch, memory):
        seen.append(memory)
        return torch.zeros(()), {"x": batch}

    task: Any = SimpleNamespace(recurrent_loss=recurrent_loss)
    assert two.state_dict() is None
    for batch in rows.split(2):
        two.loss(task, None, batch)
    state = two.state_dict()
    assert torch.equal(state["x"], rows)
    four.load_state_dict(state, torch.device("cpu"))
    for batch in rows.split(1):
        four.loss(task, None, batch + 1)
    assert seen[:2] == [None, None]
    assert [memory["x"].tolist() for memory in seen[2:]] == [[row] for row in rows.tolist()]
    state = four.state_dict()
    assert torch.equal(state["x"], rows + 1)
    four.reset()
    assert four.state_dict() is None


@pytest.mark.slow
def test_a_run_that_is_cut_resumes_with_what_it_remembered(tmp_path, monkeypatch):
    books = f"data_root={write_books(tmp_path / 'data')}"
    options = [*RECURRENT, "trainer.micro_batch_size=2", "trainer.checkpoint_every=2", "trainer.max_steps=6", books]

    def run(folder, *more):
        return trained(compose([*options, f"results_dir={tmp_path / folder}", *more]))

    expected = run("uncut")
    loss, calls = RecurrentLMTask.recurrent_loss, iter(range(100))

    def cut(self, *arguments):
        if next(calls) == 10:  # of two micro-batches per step: in the sixth
            raise RuntimeError("cut")
        return loss(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RecurrentLMTask, "recurrent_loss", cut)
        failed = run("cut")
    found: list[Any] = []
    files = checkpoints.Checkpoints(tmp_path / "cut" / failed.hash, Processes(), SingleProcess())
    assert files.restore_newest(found.append)
    assert (found[0]["step"], found[0]["memories"]["count"].tolist()) == (4, [32] * 4)
    resumed = run("cut", "retry=[failed]")
    assert (resumed.status, resumed.metrics, resumed.history) == ("finished", expected.metrics, expected.history)
