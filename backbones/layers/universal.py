"""Universal Transformer (Dehghani et al. 2019): one layer applied repeatedly, a fixed or a per-token number of steps.

With adaptive computation time (Graves 2016) every token halts separately. With s_n the state of a token after step n
and p_n = sigmoid(w s_n + b), it halts at the first step N with p_1 + ... + p_N >= 1 - 0.01, or at the last one, and

    R = 1 - (p_1 + ... + p_{N-1}),    output = p_1 s_1 + ... + p_{N-1} s_{N-1} + R s_N.

The ponder cost is N + R; its gradient is that of R. After halting, the state is copied and remains visible to running
tokens. Halting depends on a token's own state only, so a causal network stays causal.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from backbones.layers.tokens import LearnedPositions, SinusoidalPositions
from cab.padding import PaddingMasks
from cab.training import TrainableModule

Step = Callable[[int, Tensor], Tensor]
"""Applies the layer to the states [B, N, D] at a step index."""

HALTING_EPSILON = 0.01
"""Probability that may be left at a halt."""
HALTING_BIAS = 1.0
"""Initial b."""
PONDER_WEIGHT = 0.01
"""Weight of the ponder cost in the loss; all three as in tensor2tensor's Universal Transformer."""


class FixedSteps(nn.Module):
    """Apply a layer ``count`` times.

    Args:
        count: number of steps.
        embedding: step embeddings, added to the state before each step together with the positions (at the first step,
            whose input already contains the positions, alone).
    """

    def __init__(self, count: int, embedding: LearnedPositions | SinusoidalPositions) -> None:
        super().__init__()
        self.count, self.numbers = count, embedding

    def forward(self, step: Step, x: Tensor, _padding_mask: Tensor | None, positions: Tensor) -> Tensor:
        """Return the state of ``x`` [B, N, D] after all steps; ``step`` applies the layer at a step index."""
        for index in range(self.count):
            x = step(index, self.embed_step(x, index, positions))
        return x

    def embed_step(self, x: Tensor, index: int, positions: Tensor) -> Tensor:
        """Add the vectors of the positions, [1 or B, N, D], and of the step to the state before a step."""
        coordinates = self.numbers(torch.tensor([index], device=x.device))
        if index:
            coordinates = coordinates + positions
        return x + coordinates.to(x.dtype)


class HaltingSteps(FixedSteps):
    """Apply a layer until each token halts, at most ``count`` times.

    All steps are computed for all tokens, since running tokens may read halted ones; only the output adapts.
    """

    def __init__(self, count: int, embedding: LearnedPositions | SinusoidalPositions, *, embed_dim: int) -> None:
        super().__init__(count, embedding)
        self.halting = nn.Linear(embed_dim, 1)
        nn.init.constant_(self.halting.bias, HALTING_BIAS)
        self.ponder = Ponder()

    def forward(self, step: Step, x: Tensor, padding_mask: Tensor | None, positions: Tensor) -> Tensor:
        output, spent = torch.zeros_like(x), x.new_zeros(x.shape[:2])
        count, remainder = torch.zeros_like(spent), torch.zeros_like(spent)
        runs = torch.ones_like(spent, dtype=torch.bool)
        for index in range(self.count):
            x = torch.where(runs.unsqueeze(-1), step(index, self.embed_step(x, index, positions)), x)
            p = self.halting(x).squeeze(-1).sigmoid().to(x.dtype)
            ends = runs & ((spent + p >= 1 - HALTING_EPSILON) | (index == self.count - 1))
            weight = torch.where(ends, 1 - spent, p * runs)
            output = output + weight.unsqueeze(-1) * x
            remainder = remainder + weight * ends
            spent, count, runs = spent + weight, count + runs, runs & ~ends
        self.ponder(count, remainder, padding_mask)
        return output


class Ponder(TrainableModule):
    """Add the ponder cost to the training loss; forward hooks observe the number of steps per token."""

    def forward(self, count: Tensor, remainder: Tensor, padding_mask: Tensor | None) -> None:
        """Record steps and remainders of the tokens, [B, N] each."""
        self.add_loss(PONDER_WEIGHT * (count + remainder), PaddingMasks(query=padding_mask))
