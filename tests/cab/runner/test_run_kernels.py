"""``trainer.kernels``, and what a record says about the kernels that ran."""

import pytest
import torch

from cab.config.compose import compose
from cab.errors import UserError
from cab.records.record import Record
from cab.runner.cell import Cell
from cab.runner.engine import make_initial_backbone
from cab.runner.evaluation import evaluate
from cab.runner.launch import run_sweeps
from cab.runner.processes import Processes
from engines.torch import loop

CELL = ["task=lstf", "dataset=synthetic", "backbone=informer", "attention=gla", "pattern=CS", "preset=smoke"]
CELL += ["device=cpu", "trainer.max_steps=1", "trainer.validate_every=1"]


def test_the_record_counts_backends_and_names_kernels(tmp_path, monkeypatch):
    """The kernels are those of one micro-batch, forward and backward, after the steps and without a trace of it."""
    names: list[list[str]] = []
    run_steps = loop.run_steps

    def launch(call):
        call()
        return ["a_kernel"]

    def with_kernels(run, objective, batches, order, *rest):
        run_steps(run, objective, batches, order, *rest)
        names.append(loop.launched_kernels(run, objective.model, order))
        assert all(parameter.grad is None for parameter in objective.parameters())

    monkeypatch.setattr(loop, "device_kernels", launch)
    monkeypatch.setattr(loop, "run_steps", with_kernels)
    for selection in ("null", "{recurrence: pytorch}"):
        overrides = [*CELL, f"results_dir={tmp_path}", f"trainer.kernels={selection}"]
        record = run_sweeps([overrides], is_sweep=False).outcomes[0].record
        counts = Record.read(tmp_path / f"{record.hash}.json").engine_facts["kernels"]
        assert counts["recurrence"] == {"pytorch": counts["block_recurrence"]["pytorch"]}
        assert names.pop() == ["a_kernel"]


def test_a_backend_that_cannot_compute_ends_the_run(tmp_path):
    with pytest.raises(UserError, match="fla does not compute recurrence: not on cuda"):
        run_sweeps([[*CELL, f"results_dir={tmp_path}", "trainer.kernels=fla"]], is_sweep=False)


def test_an_evaluation_uses_the_backends_and_the_float32_products_of_the_training(tmp_path, monkeypatch):
    cell = Cell.from_config(compose([*CELL, "trainer.kernels=fla", "trainer.float32_matmul_precision=high"]))
    cell.task.setup(None)
    place = make_initial_backbone(cell), torch.device("cpu"), Processes(), tmp_path
    with pytest.raises(UserError, match="fla does not compute"):
        evaluate(cell, *place)
    used: list[tuple[str, bool]] = []

    def note(*_):
        used.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
        return {}

    monkeypatch.setattr(cell.task, "evaluate", note)
    evaluate(cell, *place)
    assert used == [("high", True)]
    assert torch.get_float32_matmul_precision() == "highest"


def test_kernels_are_part_of_the_configuration():
    usual = Cell.from_config(compose(CELL)).hash
    assert Cell.from_config(compose([*CELL, "trainer.kernels=null"])).hash == usual
    assert Cell.from_config(compose([*CELL, "trainer.kernels=pytorch"])).hash != usual
