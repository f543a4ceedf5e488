"""Universal Transformer (Dehghani et al. 2019): one layer applied repeatedly, a fixed or a per-token number of steps.

With adaptive computation time (Graves 2016) every token halts separately. With s_n the state of a token after step n
and p_n = sigmoid(w s_n + b), it halts at the first step N with p_1 + ... + p_N >= 1 - 0.01, or at the last one, and

    R = 1 - (p_1 + ... + p_{N-1}),    output = p_1 s_1 + ... + p_{N-1} s_{N-1} + R s_N.

The ponder cost is N + R; its gradient is that of R. After halting, the state is copied and remains visible to running
tokens. Halting depends on a token's own state only, so a causal network stays causal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from backbones.layers.tokens import LearnedPositions, SinusoidalPositions
from backbones.layers.transformer import LayerStack, Positions, States, TransformerLayer, transformer_layers
from cab.attention import DecodeState
from cab.padding import PaddingMasks
from cab.training import TrainableModule

EPSILON = 0.01
HALTING_BIAS = 1.0
"""Initial b, as in tensor2tensor's Universal Transformer."""


class UniversalStack(LayerStack):
    """Apply the first layer ``steps`` times.

    Args:
        numbers: step embeddings, added to the state before each step together with the positions (at the first step,
            whose input already contains the positions, alone); None for no step embedding.
    """

    remembers = False

    def __init__(self, steps: int, numbers: LearnedPositions | SinusoidalPositions | None) -> None:
        super().__init__()
        self.steps, self.numbers = steps, numbers

    def count(self, num_layers: int) -> int:  # noqa: ARG002
        return 1

    def sequence(self, layers: nn.ModuleList) -> list[TransformerLayer]:
        return transformer_layers(layers) * self.steps

    def forward(
        self,
        run_layer: Callable[..., Tensor],
        layers: nn.ModuleList,
        x: Tensor,
        padding_mask: Tensor | None,
        positions: Positions | None = None,
    ) -> Tensor:
        return self.advance(lambda _, x: run_layer(layers[0], x, padding_mask), x, padding_mask, positions)

    def read(
        self,
        layers: nn.ModuleList,
        states: States,
        x: Tensor,
        padding_mask: Tensor | None,
        positions: Positions | None = None,
    ) -> tuple[Tensor, tuple[Mapping[str, DecodeState], ...]]:
        (layer,), after = transformer_layers(layers), []

        def step(number: int, x: Tensor) -> Tensor:
            x, state = layer.read(x, states[number], padding_mask)
            after.append(state)
            return x

        return self.advance(step, x, padding_mask, positions), tuple(after)

    def advance(
        self,
        step: Callable[[int, Tensor], Tensor],
        x: Tensor,
        padding_mask: Tensor | None,  # noqa: ARG002
        positions: Positions | None,
    ) -> Tensor:
        """Return the state of ``x`` [B, N, D] after all steps; ``step`` applies the layer at a step index."""
        for number in range(self.steps):
            x = step(number, self.numbered(x, number, positions))
        return x

    def numbered(self, x: Tensor, number: int, positions: Positions | None) -> Tensor:
        """Add position and step embeddings to the state before a step."""
        if self.numbers is None:
            return x
        coordinates = self.numbers(torch.tensor([number], device=x.device))
        if number and positions is not None:
            coordinates = coordinates + positions()
        return x + coordinates.to(x.dtype)


class HaltingStack(UniversalStack):
    """Apply the layer until each token halts, at most ``steps`` times.

    All steps are computed for all tokens, since running tokens may read halted ones; only the output adapts.

    Args:
        ponder_weight: weight of the ponder cost in the loss.
    """

    def __init__(
        self,
        steps: int,
        numbers: LearnedPositions | SinusoidalPositions | None,
        *,
        embed_dim: int,
        ponder_weight: float,
    ) -> None:
        super().__init__(steps, numbers)
        self.halting = nn.Linear(embed_dim, 1)
        nn.init.constant_(self.halting.bias, HALTING_BIAS)
        self.ponder = Ponder(ponder_weight)

    def advance(
        self,
        step: Callable[[int, Tensor], Tensor],
        x: Tensor,
        padding_mask: Tensor | None,
        positions: Positions | None,
    ) -> Tensor:
        output, spent = torch.zeros_like(x), x.new_zeros(x.shape[:2])
        count, remainder = torch.zeros_like(spent), torch.zeros_like(spent)
        runs = torch.ones_like(spent, dtype=torch.bool)
        for number in range(self.steps):
            x = torch.where(runs.unsqueeze(-1), step(number, self.numbered(x, number, positions)), x)
            p = self.halting(x).squeeze(-1).sigmoid().to(x.dtype)
            ends = runs & ((spent + p >= 1 - EPSILON) | (number == self.steps - 1))
            weight = torch.where(ends, 1 - spent, p * runs)
            output = output + weight.unsqueeze(-1) * x
            remainder = remainder + weight * ends
            spent, count, runs = spent + weight, count + runs, runs & ~ends
        self.ponder(count, remainder, padding_mask)
        return output


class Ponder(TrainableModule):
    """Add the ponder cost to the training loss; forward hooks observe the number of steps per token."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, count: Tensor, remainder: Tensor, padding_mask: Tensor | None) -> None:
        """Record steps and remainders of the tokens, [B, N] each."""
        self.add_loss(self.weight * (count + remainder), PaddingMasks(query=padding_mask))
