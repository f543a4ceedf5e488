"""Gradients of scores (Qin et al. 2022, section 3.1), and how the gradients' norm varies over training (their Table 2).

A score s_ij is what a method's readable form computes first of query i and key j: q.k / sqrt(E), phi(q).phi(k), ...

Shapes: H heads, n targets, m keys, E width of a head.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cab.analysis.subject import Subject, with_heads
from cab.attention import Attention
from cab.runner.batches import Shares, StepBatches, mix_seed, training_batches
from cab.training import after_optimizer_step, auxiliary_loss, parameter_groups

QUANTILES = {"median": 0.5, "q90": 0.9, "q99": 0.99, "largest": 1.0}
PRODUCTS = {torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.bmm}
SCALINGS = {torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__truediv__, torch.Tensor.div}


@dataclass
class Layer:
    """Of one slot: what its readable form computed of each row."""

    path: str
    reads: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    """Scores [H, n, m], outputs [H, n, E] and values [H, m, E], the first two with their gradients."""

    def row(self) -> dict[str, float | str]:
        """Quantiles of |dL/ds| over the pairs that have a gradient, and the bounds (their Eq. 48 and 58).

        With c1 = max |dL/do_i| over all heads of a token, c2 = max |v_j|, c3 = min |s|: softmax sqrt(n) c1 c2 / 4,
        linear attention with a denominator that over c3, NormAttention 3 c1 c2 D / (2 sqrt(eps)) with eps 1e-8. The
        first two as printed lack a factor sqrt(2), which they have here: a column of a softmax's Jacobian, of two
        weights of a half, has norm sqrt(2) / 4. All empty for a method without such a product.
        """
        columns: dict[str, float | str] = {"layer": self.path}
        pairs = [(s.grad.abs(), s) for s, _, _ in self.reads if s.grad is not None]
        gradient = torch.cat([g[g > 0] for g, _ in pairs]) if pairs else torch.empty(0)
        if not len(gradient):
            return columns
        ordered = gradient.sort().values
        for name, q in QUANTILES.items():
            columns[name] = ordered[math.ceil(q * (len(ordered) - 1))].item()
        c1 = max(o.grad.square().sum(dim=(0, 2)).max().sqrt().item() for _, o, _ in self.reads if o.grad is not None)
        c2 = max(v.norm(dim=-1).max().item() for _, _, v in self.reads)
        c3 = min(s.detach().abs()[g > 0].min().item() for g, s in pairs)
        most = max(s.shape[-1] for s, _, _ in self.reads)
        width = self.reads[0][1].shape[0] * self.reads[0][1].shape[2]
        softmax = math.sqrt(2 * most) * c1 * c2 / 4
        linear = softmax / c3 if c3 else math.inf
        bounds = {"bound_softmax": softmax, "bound_linear": linear, "bound_norm": 1.5e4 * c1 * c2 * width}
        return {**columns, "c1": c1, "c2": c2, "smallest_score": c3, **bounds}


def score_gradients(subject: Subject, *, rows: int = 4) -> list[dict[str, float | str]]:
    """A row a slot under test: :meth:`Layer.row` of the task's loss on some rows of training data."""
    subject.network.eval()
    with recorded(subject) as layers:
        subject.cell.task.loss(subject.network, subject.batch(rows)).backward()
        table = [layer.row() for layer in layers]
    subject.network.zero_grad()
    return table


@contextlib.contextmanager
def recorded(subject: Subject) -> Iterator[list[Layer]]:
    """Runs the slots in their readable forms, and records what these compute."""
    layers, undo = [], []
    for path, slot in subject.attention_layers():
        layer = Layer(path)
        layers.append(layer)
        inner = with_heads(slot)
        if inner is None:
            continue
        slot.use_reference = True
        inner.reference = _watched(inner.reference, layer)
        undo.append((slot, inner))
    try:
        yield layers
    finally:
        for slot, inner in undo:
            slot.use_reference = False
            del inner.reference


def _watched(reference: Callable[..., Tensor] | None, layer: Layer) -> Callable[..., Tensor]:
    assert reference is not None

    def read(query: Tensor, key: Tensor, value: Tensor, **more: Tensor) -> Tensor:
        with FirstProduct(query.shape[1], key.shape[1]) as product:
            output = reference(query, key, value, **more)
        if product.scores is not None and product.scores.requires_grad:
            product.scores.retain_grad()
            output.retain_grad()
            layer.reads.append((product.scores, output, value.detach()))
        return output

    return read


class FirstProduct(TorchFunctionMode):
    """Keeps the first product of matrices that has an entry for each of n targets and m keys, with what scales it."""

    def __init__(self, targets: int, keys: int) -> None:
        super().__init__()
        self.shape = (targets, keys)
        self.scores: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.scores is None:
            if func in PRODUCTS and result.shape[-2:] == self.shape and min(args[0].dim(), args[1].dim()) > 2:
                self.scores = result
        elif func in SCALINGS and args[0] is self.scores and isinstance(args[1], (int, float)):
            self.scores = result
        return result


# --- over training ----------------------------------------------------------------------------------------


def norms_over_training(subject: Subject, steps: int) -> list[dict[str, float]]:
    """A row a step: its loss, and the norm of the gradient, of all parameters and of each slot under test.

    The network goes on from the weights it has, with the cell's optimiser, rates and order of the data; gradients are
    measured before they are clipped.
    """
    network, cell, config = subject.network, subject.cell, subject.cell.trainer
    data = cell.task.training_set
    shares = Shares.cut(num_items=len(data), batch_size=config.batch_size, micro_batch_size=None)  # type: ignore[arg-type]
    order = StepBatches(num_items=len(data), shares=shares, num_steps=steps, seed=cell.config["seed"])  # type: ignore[arg-type]
    groups = parameter_groups(network, learning_rate=config.learning_rate, weight_decay=config.weight_decay)
    kind = torch.optim.AdamW if config.optimizer == "adamw" else torch.optim.Adam
    optimizer = kind(groups, betas=(config.betas[0], config.betas[1]), eps=config.eps)
    peaks = [group["lr"] for group in optimizer.param_groups]
    rate = config.rate(order.steps_per_epoch)
    network.train()
    table = []
    batches = training_batches(data, order, num_workers=0, device=torch.device("cpu"))
    for step, batch in enumerate(itertools.islice(batches, steps)):
        torch.manual_seed(mix_seed(order.seed, step))
        loss = cell.task.loss(network, batch)
        added = auxiliary_loss(network)
        (loss if added is None else loss + added).backward()
        norms = {path: _norm(slot) for path, slot in subject.attention_layers()}
        table.append({"step": step + 1, "loss": loss.item(), "all": _norm(network), **norms})
        if config.max_grad_norm:
            nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * rate(step)
        optimizer.step()
        after_optimizer_step(network)
        optimizer.zero_grad()
    return table


def _norm(module: nn.Module | Attention) -> float:
    squares = [p.grad.square().sum() for p in module.parameters() if p.grad is not None]
    return math.sqrt(sum(x.item() for x in squares))


def relative_deviation(values: list[float]) -> float:
    """Standard deviation over mean."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((x - mean) ** 2 for x in values) / len(values)) / mean if mean else math.nan
