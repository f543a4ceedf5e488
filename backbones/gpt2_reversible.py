"""GPT-2 with reversible layers (Gomez et al. 2017; Kitaev et al. 2020, Reformer). Attention layers: CS.

Memory barely grows with depth. Two streams, both initialized with the input, alternate: y_1 = x_1 + attention(x_2),
then y_2 = x_2 + feed_forward(y_1). Over the whole stack this is one sequence,

    a_{k+2} = a_k + branch_k(a_{k+1}),    a_0 = a_1 = x,

which can be inverted: a_k = a_{k+2} - branch_k(a_{k+1}). The backward pass recomputes each branch under the same random
state and reconstructs all earlier values from the last two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import set_checkpoint_early_stop

from backbones.gpt2 import GPT2
from backbones.layers.branches import Branch, BranchLayer, BranchStack
from backbones.layers.transformer import LayerStack, ResidualKind, stack
from cab import UserError, register_backbone
from cab.training import recompute


@register_backbone("gpt2_reversible", paper="Kitaev et al. 2020", tasks={"lm": "CS"})
class ReversibleGPT2(GPT2):
    """GPT-2 with two streams, whose activation memory barely grows with depth.

    Args: as for ``gpt2``; a gate cannot be inverted, and activations are always recomputed.
    """

    def make_layers(self, num_layers: int, *arguments: Any, residual: ResidualKind, **options: Any) -> LayerStack:
        if self.checkpoint_activations or residual != "plain":
            raise UserError(
                "gpt2_reversible recomputes activations and cannot invert a gate: "
                "set checkpoint_activations=false and residual=plain"
            )
        if options["feed_forward"] == "none":
            raise UserError(
                "gpt2_reversible alternates attention and feed-forward layers: set feed_forward=plain or glu"
            )
        return stack(num_layers, partial(BranchLayer, *arguments, **options), ReversibleStack)


class ReversibleStack(BranchStack):
    """Layers of two streams; the output is the mean of both.

    The backward pass holds only the last two values and the activations of one branch. Gradients equal those of
    :func:`couple`, up to rounding in the reconstruction.
    """

    def join(self, branches: Sequence[Branch], x: Tensor) -> Tensor:
        reconstructs = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        return (couple_reversibly if reconstructs else couple)(branches, x)


def couple(branches: Sequence[Branch], x: Tensor) -> Tensor:
    """Return the mean of the last two values; autograd stores all activations."""
    previous, current = x, x
    for branch in branches:
        previous, current = current, previous + branch(current)
    return (previous + current) / 2


def couple_reversibly(branches: Sequence[Branch], x: Tensor) -> Tensor:
    """Compute :func:`couple`, reconstructing values and activations in the backward pass."""
    values: dict[int, Tensor] = {}
    previous, current = x, x
    device = x.new_empty(0)  # selects the device whose random state and autocast are restored
    with set_checkpoint_early_stop(False):  # a recomputed branch has to return its output
        for k, branch in enumerate(branches):
            coupling = _Coupling(branch, k, len(branches), current, values)
            previous, current = current, previous + recompute(coupling, device)
    values[len(branches)], values[len(branches) + 1] = previous.detach(), current.detach()
    return (previous + current) / 2


class _Coupling:
    """Branch k of ``count``: computes its output forward and, on recomputation, reconstructs its input and then a_k.

    ``values`` holds a_k by k: the last two while the graph is alive, and those that the next branch needs.
    """

    def __init__(self, branch: Branch, k: int, count: int, x: Tensor, values: dict[int, Tensor]) -> None:
        self.branch, self.k, self.count, self.values = branch, k, count, values
        self.input: Tensor | None = x
        self.needs_gradient = x.requires_grad

    def __call__(self, _device: Tensor) -> Tensor:
        if self.input is not None:
            x, self.input = self.input, None
            return self.branch(x)
        k, values = self.k, self.values
        if k + 1 not in values:
            raise RuntimeError(
                "reversible layers find their values from the last to the first: "
                "let the gradient come through the network's output, as of loss + auxiliary_loss"
            )
        y = self.branch(values[k + 1].requires_grad_(self.needs_gradient))
        after = values[k + 2] if k + 2 >= self.count else values.pop(k + 2)
        if k:
            values[k] = (after - y).detach()
        elif self.count > 1:
            del values[1]
        return y
