"""Training speed: examples and tokens per second, and model FLOPs utilization (MFU).

Tokens and FLOPs of a step are counted on shapes: without a GPU, and without the network's memory.
"""

from __future__ import annotations

import contextlib
import copy
import re
import statistics
import time
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.hooks import RemovableHandle

from cab import Attention
from cab.config.run_config import Precision
from cab.errors import optional
from cab.kernels import use
from cab.registry.tables import read_rows
from cab.runner.batches import SeededItems, StepBatches, mix_seed
from cab.runner.engine import Run, make_backbone


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


PASSES = 3
"""Forward and backward pass in forward passes: the gradient of a product has one product per factor."""


class StepSize(NamedTuple):
    """Size of a training step, per example.

    Attributes:
        tokens: positions of the longest query of an attention layer.
        flops: model FLOPs of Chowdhery et al. (2022, appendix B): matrix products, convolutions, and softmax attention
            with its masked pairs, forward and backward, without recomputation; None if they were not counted.
    """

    tokens: float
    flops: float | None


def step_size(run: Run, order: StepBatches) -> StepSize | None:
    """Count the next step from its first micro-batch; None without a next step or an attention layer."""
    draw = next(iter(order), None)
    if draw is None:
        return None
    task, examples = copy.copy(run.cell.task), len(draw.indices)
    _, batch = SeededItems(task.training_set, order.seed).__getitems__(draw)
    quiet = warnings.catch_warnings(action="ignore")
    with use("pytorch"), torch.random.fork_rng(devices=[]), torch.no_grad(), quiet, ShapesOnly() as shapes:
        network = make_backbone(run.cell).train()
        queries, _ = note_queries(network)
        torch.manual_seed(mix_seed(order.seed, draw.number))  # as in the step
        task.recurrent_loss(network, batch, None) if task.recurrent else task.loss(network, batch)
    return StepSize(queries[0] / examples, PASSES * shapes.flops / examples) if queries else None


def note_queries(network: nn.Module) -> tuple[list[int], list[RemovableHandle]]:
    """Return a list that will have one number, the positions [B, N] of the longest query so far, and what notes it."""
    longest: list[int] = []

    def note(_: nn.Module, args: Any, named: Any) -> None:
        longest[:] = [max(*longest, 0, (args[0] if args else named["query"]).shape[:2].numel())]

    layers = [module for module in network.modules() if isinstance(module, Attention)]
    return longest, [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]


class ShapesOnly(TorchDispatchMode):
    """Compute nothing that depends on weights: such results are zeros that share one element. Count FLOPs.

    Operators get inputs on the meta device, so a network uses its PyTorch code instead of kernels that are not counted.
    What depends on the batch and on random numbers alone is computed, since networks and losses read it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self._counts = flop_counts()
        self._seen: dict[Any, tuple[int, Any]] = {}
        """FLOPs and results on the meta device, by operator and inputs: layers and blocks repeat them."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the guard that skips it imports the compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        inputs = [x for x in leaves if isinstance(x, Tensor)]
        is_random = torch.Tag.nondeterministic_seeded in func.tags and not inputs
        if is_random or (inputs and not any(map(_is_unknown, inputs))):
            return func(*args, **kwargs)
        if func.is_view or torch.Tag.inplace_view in func.tags:
            with contextlib.suppress(RuntimeError):  # one that requires contiguous numbers
                return func(*args, **kwargs)
        if func._schema.is_mutable:
            return kwargs.get("out", args[0])
        key = func, *map(_description, leaves)
        if key in self._seen:
            flops, out = self._seen[key]
            self.flops += flops
            return tree_map_only(Tensor, _zeros, out)
        on_meta, named = tree_map_only(Tensor, _on_meta, (args, kwargs))
        try:
            out = func(*on_meta, **{**named, **({"device": "meta"} if "device" in kwargs else {})})
        except (NotImplementedError, RuntimeError):  # the shape of the result depends on numbers
            return func(*args, **kwargs)
        count = self._counts.get(func._overloadpacket)
        flops = 0 if count is None else count(*on_meta, **named, out_val=out)
        self.flops += flops
        is_condition = isinstance(out, Tensor) and out.dtype == torch.bool
        if is_condition or not (inputs or _is_inexact(out)):
            return func(*args, **kwargs)
        self._seen[key] = flops, out
        return tree_map_only(Tensor, _zeros, out)


def flop_counts() -> dict[Any, Any]:
    """Return functions that count the FLOPs of operators; torch's counter lacks the one of a CPU."""
    from torch.utils.flop_counter import flop_registry, sdpa_flop  # takes 0.2 s

    return {**flop_registry, torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop}


def _is_inexact(x: Any) -> bool:
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


def _is_unknown(x: Tensor) -> bool:
    return _is_inexact(x) and x.untyped_storage().nbytes() <= x.element_size()


def _description(x: Any) -> Any:
    """Return what the operators on the meta device see of an input."""
    return (x.shape, x.stride(), x.dtype, _is_unknown(x)) if isinstance(x, Tensor) else x


def _on_meta(x: Tensor) -> Tensor:
    if _is_unknown(x):
        return torch.empty(x.shape, dtype=x.dtype, device="meta")
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


def _zeros(x: Tensor) -> Tensor:
    return torch.zeros((), dtype=x.dtype).expand(x.shape) if _is_inexact(x) else torch.zeros(x.shape, dtype=x.dtype)
