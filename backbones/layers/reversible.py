"""Reversible layers (Gomez et al. 2017; Kitaev et al. 2020, Reformer): memory that hardly grows with depth.

Two streams, at first both the input, take turns: y_1 = x_1 + attention(x_2), then y_2 = x_2 + feed_forward(y_1). Over a
whole stack that is one sequence of values in which each branch adds to the value before its input,

    a_{k+2} = a_k + branch_k(a_{k+1}),    a_0 = a_1 = x,

so that a_k = a_{k+2} - branch_k(a_{k+1}). The backward pass repeats each branch for its activations, under the random
numbers of the first time, and that finds again, from the last two values on, every value that came before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import set_checkpoint_early_stop

from backbones.layers.transformer import LayerStack, Positions, States, TransformerLayer, read_attention
from cab.attention import DecodeState
from cab.training import recompute

Branch = Callable[[Tensor], Tensor]


class ReversibleLayer(TransformerLayer):
    """Self attention and feed-forward map, of which each call runs one, with its norm in front and its dropout."""

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        memory: Tensor | None = None,  # noqa: ARG002
        memory_padding_mask: Tensor | None = None,  # noqa: ARG002
        past: Tensor | None = None,  # noqa: ARG002
        *,
        branch: str = "attention",
    ) -> Tensor:
        """What ``branch`` adds, [B, N, D], from the stream that it reads; there is no ``memory`` and no ``past``."""
        if branch == "attention":
            y = self.self_attention(self.self_residual.enter(x), query_padding_mask=padding_mask)
            return self.self_residual.dropout(y)
        return self.feed_forward_residual.dropout(self.feed_forward(self.feed_forward_residual.enter(x)))

    def read(
        self, x: Tensor, states: Mapping[str, DecodeState], padding_mask: Tensor | None = None
    ) -> tuple[Tensor, dict[str, DecodeState]]:
        """:meth:`forward` of the attention for the next tokens [B, T, D], and the state after them."""
        y, after = read_attention(self.self_attention, self.self_residual.enter(x), states["self"], padding_mask)
        return self.self_residual.dropout(y), {"self": after}


class ReversibleStack(LayerStack):
    """Layers of two streams; the mean of the two comes out.

    In the backward pass only the last two values are there, and the activations of one branch at a time. The gradients
    are those of :func:`couple`, up to what rounding adds when values are found again.
    """

    layer_class = ReversibleLayer
    remembers = False

    def forward(
        self,
        run_layer: Callable[..., Tensor],  # noqa: ARG002  # the layers are repeated by branch
        layers: nn.ModuleList,
        x: Tensor,
        padding_mask: Tensor | None,
        positions: Positions | None = None,  # noqa: ARG002
    ) -> Tensor:
        branches: list[Branch] = []
        for layer in layers:
            branches += [partial(layer, padding_mask=padding_mask), partial(layer, branch="feed_forward")]
        finds_again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        return (couple_reversibly if finds_again else couple)(branches, x)

    def read(
        self,
        layers: nn.ModuleList,
        states: States,
        x: Tensor,
        padding_mask: Tensor | None,
        positions: Positions | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, tuple[Mapping[str, DecodeState], ...]]:
        after: list[Mapping[str, DecodeState]] = []

        def attend(layer: ReversibleLayer, state: Mapping[str, DecodeState], x: Tensor) -> Tensor:
            y, new = layer.read(x, state, padding_mask)
            after.append(new)
            return y

        branches: list[Branch] = []
        for layer, state in zip(cast(list[ReversibleLayer], list(layers)), states, strict=True):
            branches += [partial(attend, layer, state), partial(layer, branch="feed_forward")]
        return couple(branches, x), tuple(after)


def couple(branches: Sequence[Branch], x: Tensor) -> Tensor:
    """The mean of the last two values, all of whose activations autograd keeps."""
    before, now = x, x
    for branch in branches:
        before, now = now, before + branch(now)
    return (before + now) / 2


def couple_reversibly(branches: Sequence[Branch], x: Tensor) -> Tensor:
    """:func:`couple`, whose values and activations are found again in the backward pass."""
    found: dict[int, Tensor] = {}
    before, now = x, x
    device = x.new_empty(0)  # whose random numbers and autocast are repeated
    with set_checkpoint_early_stop(False):  # a branch that is repeated has to say what it adds
        for number, branch in enumerate(branches):
            before, now = now, before + recompute(_Coupling(branch, number, len(branches), now, found), device)
    found[len(branches)], found[len(branches) + 1] = before.detach(), now.detach()
    return (before + now) / 2


class _Coupling:
    """A branch that is called with its input a_{k+1} once, and when it is repeated finds its input, and then a_k.

    ``found`` holds the last two values as long as the graph, of the others those that the next branch needs.
    """

    def __init__(self, branch: Branch, number: int, count: int, given: Tensor, found: dict[int, Tensor]) -> None:
        self.branch, self.number, self.count, self.found = branch, number, count, found
        self.given: Tensor | None = given
        self.needs_gradient = given.requires_grad

    def __call__(self, _device: Tensor) -> Tensor:
        if self.given is not None:
            given, self.given = self.given, None
            return self.branch(given)
        k, found = self.number, self.found
        if k + 1 not in found:
            raise RuntimeError(
                "reversible layers find their values from the last to the first: "
                "let the gradient come through the network's output, as of loss + auxiliary_loss"
            )
        y = self.branch(found[k + 1].requires_grad_(self.needs_gradient))
        after = found[k + 2] if k + 2 >= self.count else found.pop(k + 2)
        if k:
            found[k] = (after - y).detach()
        elif self.count > 1:
            del found[1]
        return y
