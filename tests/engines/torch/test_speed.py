"""Tokens and model FLOPs against closed formulas and torch's counter; MFU against published peaks."""

import csv
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cab import Attention
from cab.config.compose import compose
from cab.config.run_config import Precision
from cab.runner.batches import SeededItems, mix_seed
from cab.runner.cell import Cell
from cab.runner.engine import Run, make_backbone, open_run
from engines.torch import speed
from engines.torch.loop import make_order
from engines.torch.speed import PASSES, Speed, StepSize, flop_counts, peak_flops, step_size
from tests.helpers.runs.troubled import trained
from tests.helpers.tasks.records import few_examples

CPU_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
CELLS = {
    "mlm": "backbone=roberta pattern=NS dataset=synthetic attention=local",
    "sr": "backbone=sr3 pattern=NS dataset=synthetic attention=vanilla",
    "lstf": "backbone=informer pattern=NC dataset=synthetic attention=abc",
    "probe": "backbone=mixer pattern=CS dataset=recall attention=deltanet",
}


def opened(task: str, cell: str) -> Run:
    with few_examples():
        return open_run(Cell.from_config(compose([f"task={task}", *cell.split(), "preset=smoke", "device=cpu"])), "")


@pytest.mark.parametrize("task", CELLS)
def test_what_is_counted_on_shapes_is_what_a_forward_pass_computes(task):
    """With the batch's numbers and real weights, by torch's own counter."""
    run = opened(task, CELLS[task])
    order = make_order(len(run.cell.task.training_set), run)
    draw = next(iter(order))
    _, batch = SeededItems(run.cell.task.training_set, order.seed).__getitems__(draw)
    state = torch.get_rng_state()
    size = step_size(run, order)
    assert torch.equal(torch.get_rng_state(), state), "training would draw other numbers"
    network = make_backbone(run.cell).train()
    torch.manual_seed(mix_seed(order.seed, draw.number))
    formula: Any = functools.partial(flop_counts()[CPU_ATTENTION])
    formula._get_raw = True  # it reads tensors, not shapes
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping={CPU_ATTENTION: formula}) as counter:
        run.cell.task.loss(network, batch)
    assert counter.get_total_flops() > 0
    assert size.flops == PASSES * counter.get_total_flops() / len(draw.indices)


def test_a_language_model_is_six_flops_per_weight_and_twelve_per_pair():
    """Chowdhery et al. 2022, appendix B: 6 N + 12 L H Q T per token."""
    run = opened("lm", "backbone=gpt2 pattern=CS dataset=synthetic attention=vanilla")
    network, length = make_backbone(run.cell), run.cell.task.block_len
    size = step_size(run, make_order(len(run.cell.task.training_set), run))
    assert size.tokens == length
    layers = [module for module in network.modules() if isinstance(module, torch.nn.Linear)]
    weights = sum(layer.weight.numel() for layer in layers) + network.decoder_embedding.tokens.weight.numel()
    attention = [module for module in network.modules() if isinstance(module, Attention)]
    [width] = {layer.embed_dim for layer in attention}
    assert size.flops / length == 6 * weights + 12 * len(attention) * width * length


def test_tokens_of_rows_records_and_status_are_one_number(troubled, tmp_path, cab):
    record = trained(troubled("trainer.validate_every=4"))
    with (tmp_path / record.hash / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:  # three tokens in each pass, whose batch has four items
        assert float(row["tokens_per_second"]) == pytest.approx(float(row["examples_per_second"]) * 3 / 4)
        assert row["mfu"] == "", "no peak of a CPU is published"
    speeds = sorted(float(row["tokens_per_second"]) for row in rows)
    assert record.engine_facts["tokens_per_second"] == pytest.approx(sum(speeds) / 2)
    [status] = csv.DictReader(cab("status", str(tmp_path), "--csv").out.splitlines())
    assert float(status["tokens_per_second"]) == pytest.approx(record.engine_facts["tokens_per_second"], rel=0.01)


def test_mfu_is_the_share_of_all_peaks(monkeypatch):
    """Two H200 that have 8 steps of 4 examples in two seconds, each of 989 TFLOP: 8% in 16 bit."""
    run: Any = SimpleNamespace(
        processes=SimpleNamespace(count=2, is_first=True),
        observer=None,
        device=torch.device("cuda"),
        cell=SimpleNamespace(config=SimpleNamespace(precision_on=lambda _: Precision("bf16-mixed", "highest"))),
    )
    order: Any = SimpleNamespace(shares=SimpleNamespace(batch_size=4, micro_batch_size=2))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(speed, "step_size", lambda *_: StepSize(tokens=100, flops=9.89e12))
    seconds = iter([10.0, 12.0])
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    measured = Speed(run, order, torch.nn.Linear(1, 1))
    measured.start(3)
    assert measured.row(11) == pytest.approx({"examples_per_second": 16, "tokens_per_second": 1600, "mfu": 0.08})
    assert measured.facts() == pytest.approx({"tokens_per_second": 1600, "mfu": 0.08, "flops_per_token": 9.89e10})


PEAKS = {
    ("NVIDIA H200", "bf16-mixed", "highest"): 989e12,
    ("NVIDIA H200 NVL", "16-mixed", "high"): 835e12,
    ("NVIDIA A100-SXM4-80GB", "32-true", "high"): 156e12,
    ("NVIDIA A100-SXM4-80GB", "32-true", "highest"): 19.5e12,
    ("NVIDIA H100 80GB HBM3", "32-true", "highest"): 67e12,
    ("NVIDIA H100", "bf16-mixed", "high"): None,
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16-mixed", "high"): None,
}


def test_a_peak_is_published_or_unknown():
    assert {case: peak_flops(case[0], Precision(*case[1:])) for case in PEAKS} == PEAKS
