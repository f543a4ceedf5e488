"""Training speed: examples and tokens per second, and model FLOPs utilization (MFU)."""

from __future__ import annotations

import re
import statistics
import time

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from cab.config.run_config import Precision
from cab.errors import optional
from cab.registry.tables import read_rows
from cab.runner.batches import StepBatches
from cab.runner.engine import Run
from engines.torch.step_size import StepSize, note_queries, step_size


class Speed:
    """The speed between two rows of ``metrics.csv``, without validation; tokens and FLOPs in the first process only.

    MFU is the share of the published peak of all GPUs that the model FLOPs take (Chowdhery et al. 2022).
    """

    def __init__(self, run: Run, order: StepBatches, network: nn.Module) -> None:
        self._shares, self._processes = order.shares, run.processes.count
        self._size: StepSize | None = None
        self._peak: float | None = None
        self._queries, self._hooks = list[int](), list[RemovableHandle]()
        self._rows: list[dict[str, float]] = []
        if not run.processes.is_first or run.observer is not None:
            return
        if run.device.type == "cuda":
            self._peak = peak_flops(torch.cuda.get_device_name(run.device), run.cell.config.precision_on(run.device))
        if run.device.type == "cuda" or run.cell.config.trainer.compile:  # counting imports the compiler
            with optional("the count of tokens and FLOPs"):
                self._size = step_size(run, order)
        else:
            self._queries, self._hooks = note_queries(network)

    def start(self, step: int) -> None:
        """Start an interval after ``step``."""
        self._step, self._began = step, time.perf_counter()

    def row(self, step: int) -> dict[str, float]:
        """Return the speed since the start of the interval, which ends with ``step``; the device has computed it."""
        examples = (step - self._step) * self._shares.batch_size / (time.perf_counter() - self._began)
        row = {"examples_per_second": examples}
        if self._queries:
            self._size = StepSize(self._queries[0] / self._shares.micro_batch_size, None)
        for hook in self._hooks:
            hook.remove()
        if self._size is not None:
            row["tokens_per_second"] = examples * self._size.tokens
            if self._peak and self._size.flops:
                row["mfu"] = examples * self._size.flops / (self._peak * self._processes)
        self._rows.append(row)
        return row

    def facts(self) -> dict[str, float]:
        """Return the medians over the rows of this process, and the model FLOPs per token, as far as they are known."""
        facts = {
            name: statistics.median(row[name] for row in self._rows)
            for name in ("tokens_per_second", "mfu")
            if self._rows and name in self._rows[0]
        }
        size = self._size
        return facts | ({"flops_per_token": size.flops / size.tokens} if size is not None and size.flops else {})


def peak_flops(gpu: str, precision: Precision) -> float | None:
    """Return the published FLOP/s of dense matrix products of a GPU, from configs/gpus.csv; None if unknown."""
    rows = [row for row in read_rows("gpus.csv") if re.match(rf"{row['gpu']}\b", gpu)]
    if not rows or "MIG" in gpu:  # a part of a GPU
        return None
    row = max(rows, key=lambda row: len(row["gpu"]))
    if precision.precision == "32-true":
        column = "tflops_float32" if precision.float32_matmul_precision == "highest" else "tflops_tf32"
    else:
        column = "tflops_16bit"
    return 1e12 * float(row[column])
