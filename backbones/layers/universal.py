"""Universal Transformer (Dehghani et al. 2019): one layer applied repeatedly, a fixed or a per-token number of steps.

With adaptive computation time (Graves 2016) every token halts separately. With s_n the state of a token after step n
and p_n = sigmoid(w s_n + b), it halts at the first step N with p_1 + ... + p_N >= 1 - 0.01, or at the last one, and

    R = 1 - (p_1 + ... + p_{N-1}),    output = p_1 s_1 + ... + p_{N-1} s_{N-1} + R s_N.

The ponder cost is N + R; its gradient is that of R. After halting, the state is copied and remains visible to running
tokens. Halting depends on a token's own state only, so a causal network stays causal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from backbones.layers.tokens import LearnedPositions, SinusoidalPositions
from backbones.layers.transformer import LayerStack, Positions, States, TransformerLayer, run_layer
from cab.padding import PaddingMasks
from cab.training import TrainableModule

Step = Callable[[int, Tensor], Tensor]
"""Applies the layer to the states [B, N, D] at a step index."""

EPSILON = 0.01
HALTING_BIAS = 1.0
"""Initial b, as in tensor2tensor's Universal Transformer."""


class FixedSteps(nn.Module):
    """Apply a layer ``count`` times.

    Args:
        count: number of steps.
        embedding: step embeddings, added to the state before each step together with the positions (at the first step,
            whose input already contains the positions, alone); None for no step embedding.
    """

    def __init__(self, count: int, embedding: LearnedPositions | SinusoidalPositions | None) -> None:
        super().__init__()
        self.count, self.numbers = count, embedding

    def forward(self, step: Step, x: Tensor, padding_mask: Tensor | None, positions: Positions | None) -> Tensor:  # noqa: ARG002
        """Return the state of ``x`` [B, N, D] after all steps; ``step`` applies the layer at a step index."""
        for index in range(self.count):
            x = step(index, self.embed_step(x, index, positions))
        return x

    def embed_step(self, x: Tensor, index: int, positions: Positions | None) -> Tensor:
        """Add position and step embeddings to the state before a step."""
        if self.numbers is None:
            return x
        coordinates = self.numbers(torch.tensor([index], device=x.device))
        if index and positions is not None:
            coordinates = coordinates + positions()
        return x + coordinates.to(x.dtype)


class HaltingSteps(FixedSteps):
    """Apply a layer until each token halts, at most ``count`` times.

    All steps are computed for all tokens, since running tokens may read halted ones; only the output adapts.

    Args:
        ponder_weight: weight of the ponder cost in the loss.
    """

    def __init__(
        self,
        count: int,
        embedding: LearnedPositions | SinusoidalPositions | None,
        *,
        embed_dim: int,
        ponder_weight: float,
    ) -> None:
        super().__init__(count, embedding)
        self.halting = nn.Linear(embed_dim, 1)
        nn.init.constant_(self.halting.bias, HALTING_BIAS)
        self.ponder = Ponder(ponder_weight)

    def forward(self, step: Step, x: Tensor, padding_mask: Tensor | None, positions: Positions | None) -> Tensor:
        output, spent = torch.zeros_like(x), x.new_zeros(x.shape[:2])
        count, remainder = torch.zeros_like(spent), torch.zeros_like(spent)
        runs = torch.ones_like(spent, dtype=torch.bool)
        for index in range(self.count):
            x = torch.where(runs.unsqueeze(-1), step(index, self.embed_step(x, index, positions)), x)
            p = self.halting(x).squeeze(-1).sigmoid().to(x.dtype)
            ends = runs & ((spent + p >= 1 - EPSILON) | (index == self.count - 1))
            weight = torch.where(ends, 1 - spent, p * runs)
            output = output + weight.unsqueeze(-1) * x
            remainder = remainder + weight * ends
            spent, count, runs = spent + weight, count + runs, runs & ~ends
        self.ponder(count, remainder, padding_mask)
        return output


def make_steps(
    count: int, embed_dim: int, *, has_embedding: bool, is_learned: bool, ponder_weight: float | None
) -> FixedSteps:
    """Return the step control of a network: with a fixed number of steps, or with a ponder weight halting per token."""
    embedding: LearnedPositions | SinusoidalPositions | None = None
    if has_embedding:
        embedding = LearnedPositions(count, embed_dim) if is_learned else SinusoidalPositions(embed_dim, offset=1)
    if ponder_weight is None:
        return FixedSteps(count, embedding)
    return HaltingSteps(count, embedding, embed_dim=embed_dim, ponder_weight=ponder_weight)


class Ponder(TrainableModule):
    """Add the ponder cost to the training loss; forward hooks observe the number of steps per token."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, count: Tensor, remainder: Tensor, padding_mask: Tensor | None) -> None:
        """Record steps and remainders of the tokens, [B, N] each."""
        self.add_loss(self.weight * (count + remainder), PaddingMasks(query=padding_mask))


class UniversalStack(LayerStack):
    """One layer, repeated by ``steps``, which the backbone registers as ``layer_stack``."""

    steps: FixedSteps

    def __init__(self, layers: Iterable[nn.Module], steps: FixedSteps) -> None:
        super().__init__(layers)
        object.__setattr__(self, "steps", steps)  # no submodule: its weights belong to the backbone

    def executions(self) -> list[TransformerLayer]:
        return super().executions() * self.steps.count

    def forward(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        *_: Any,
        positions: Positions | None = None,
        checkpointed: bool = False,
    ) -> Tensor:
        def step(_: int, x: Tensor) -> Tensor:
            return run_layer(self[0], x, padding_mask, checkpointed=checkpointed)

        return self.steps(step, x, padding_mask, positions)

    def read(
        self, x: Tensor, states: States, padding_mask: Tensor | None, positions: Positions | None = None
    ) -> tuple[Tensor, States]:
        layers, after = self.executions(), []

        def step(index: int, x: Tensor) -> Tensor:
            x, state = layers[index].read(x, states[index], padding_mask)
            after.append(state)
            return x

        return self.steps(step, x, padding_mask, positions), tuple(after)
