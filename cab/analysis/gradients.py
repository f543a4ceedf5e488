"""Gradients of attention scores (Qin et al. 2022, section 3.1) and gradient norms over training (their Table 2).

The score s_ij is the first product of query i and key j in a method's reference form: q.k / sqrt(E), phi(q).phi(k), ...

Shapes: H heads, n targets, m keys, E head dimension, D = H E.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cab.analysis.subject import AnalyzedNetwork, with_heads
from cab.errors import UserError
from cab.runner.calibration import train_first_steps
from cab.runner.processes import DivergedError

QUANTILES = {"median": 0.5, "q90": 0.9, "q99": 0.99, "largest": 1.0}
PRODUCTS = {torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.bmm}
SCALINGS = {torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__truediv__, torch.Tensor.div}


@dataclass
class Layer:
    """The scores, outputs and values that the reference form of one attention layer computed."""

    path: str
    reads: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    """Scores [H, n, m], outputs [H, n, E] and values [H, m, E] per sequence; the first two hold their gradients."""

    def row(self) -> dict[str, float | str]:
        """Compute quantiles of abs(dL/ds) over pairs with a nonzero gradient, and the bounds (their Eq. 48 and 58).

        Let c1 = max norm(dL/do_i) over all heads of a token, c2 = max norm(v_j) and c3 = min abs(s). The bounds are
        sqrt(n) c1 c2 / 4 for softmax, the same divided by c3 for linear attention with a denominator, and
        3 c1 c2 D / (2 sqrt(eps)) with eps = 1e-8 for NormAttention. The first two include a factor sqrt(2) that the
        printed ones lack: a column of the Jacobian of a softmax with two weights of 1/2 has norm sqrt(2) / 4. A method
        without such a product has no columns but ``layer``.
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
        longest = max(s.shape[-1] for s, _, _ in self.reads)
        width = self.reads[0][1].shape[0] * self.reads[0][1].shape[2]
        softmax = math.sqrt(2 * longest) * c1 * c2 / 4
        linear = softmax / c3 if c3 else math.inf
        norm = 1.5e4 * c1 * c2 * width  # 1.5e4 is 3 / (2 sqrt(eps))
        bounds = {"bound_softmax": softmax, "bound_linear": linear, "bound_norm": norm}
        return {**columns, "c1": c1, "c2": c2, "smallest_score": c3, **bounds}


def score_gradients(subject: AnalyzedNetwork, *, rows: int = 4) -> list[dict[str, float | str]]:
    """Return :meth:`Layer.row` per attention layer under test, for the task's loss on ``rows`` training examples."""
    subject.network.eval()
    with recorded(subject) as layers:
        subject.cell.task.loss(subject.network, subject.batch(rows)).sum().backward()
        table = [layer.row() for layer in layers]
    subject.network.zero_grad()
    return table


@contextlib.contextmanager
def recorded(subject: AnalyzedNetwork) -> Iterator[list[Layer]]:
    """Run the attention layers in their reference form and record what these compute."""
    layers, undo = [], []
    for path, attention in subject.attention_layers():
        layer = Layer(path)
        layers.append(layer)
        inner = with_heads(attention)
        if inner is None:
            continue
        attention.use_reference = True
        inner.reference = _watched(inner.reference, layer)
        undo.append((attention, inner))
    try:
        yield layers
    finally:
        for attention, inner in undo:
            attention.use_reference = False
            del inner.reference  # that of the instance, which hides the one of its class


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
    """Record the first matrix product with one entry per target and key, including its scaling."""

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


def norms_over_training(subject: AnalyzedNetwork, steps: int) -> list[dict[str, float]]:
    """Train the network for some steps and return one row per step: loss and gradient norms.

    The network continues from the weights it has, trained on the CPU as ``engine=torch`` trains the cell, without
    validation. Norms are measured before clipping, over all parameters and over each attention layer under test.
    """
    table: list[dict[str, float]] = []

    def note(step: int, loss: Tensor) -> None:
        norms = {path: _norm(layer) for path, layer in subject.attention_layers()}
        table.append({"step": step, "loss": loss.item(), "all": _norm(subject.network), **norms})

    try:
        train_first_steps(subject.cell, subject.network, steps, note, device="cpu")
    except DivergedError as error:
        raise UserError(str(error)) from error
    return table


def _norm(module: nn.Module) -> float:
    squares = [p.grad.square().sum() for p in module.parameters() if p.grad is not None]
    return math.sqrt(sum(x.item() for x in squares))


def relative_deviation(values: list[float]) -> float:
    """Return the standard deviation divided by the mean."""
    mean = statistics.fmean(values)
    return statistics.pstdev(values, mean) / mean if mean else math.nan
