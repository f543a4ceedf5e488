"""GPT-2 with one layer applied repeatedly: Universal Transformer (Dehghani et al. 2019). Attention layers: CS.

The number of steps is fixed, or with adaptive computation time (Graves 2016) every token halts separately. With s_n the
state of a token after step n and p_n = sigmoid(w s_n + b), it halts at the first step N with
p_1 + ... + p_N >= 1 - 0.01, or at the last one, and

    R = 1 - (p_1 + ... + p_{N-1}),    output = p_1 s_1 + ... + p_{N-1} s_{N-1} + R s_N.

The ponder cost is N + R; its gradient is that of R. After halting, the state is copied and remains visible to running
tokens. Halting depends on a token's own state only, so a causal network stays causal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from backbones.gpt2 import GPT2
from backbones.layers.decoder import DecodingState
from backbones.layers.tokens import LearnedPositions, SinusoidalPositions, number_positions
from backbones.layers.transformer import LayerStack, TransformerLayer, stack
from cab import register_backbone
from cab.padding import PaddingMasks
from cab.training import TrainableModule


class RepeatedLayer(LayerStack):
    """One layer that is executed ``count`` times; each execution has its own decoding state."""

    def __init__(self, layers: Iterable[nn.Module], *, count: int) -> None:
        super().__init__(layers)
        self.count = count

    def executions(self) -> list[TransformerLayer]:
        return super().executions() * self.count


@register_backbone("gpt2_universal", paper="Dehghani et al. 2019", tasks={"lm": "CS"})
class UniversalGPT2(GPT2):
    """GPT-2 whose ``num_layers`` layers are one layer, with position and step vectors added before each step.

    With ``positions=learned``, the step vectors are learned as well.

    Args: as for ``gpt2``.
    """

    layer_stack: FixedSteps

    def make_layers(self, num_layers: int, *arguments: Any, embed_dim: int, **options: Any) -> LayerStack:
        is_learned = isinstance(self.decoder_embedding.positions, LearnedPositions)
        numbers = LearnedPositions(num_layers, embed_dim) if is_learned else SinusoidalPositions(embed_dim, offset=1)
        self.layer_stack = self.make_steps(num_layers, numbers, embed_dim)
        layer = partial(TransformerLayer, *arguments, embed_dim=embed_dim, **options)
        return stack(1, layer, partial(RepeatedLayer, count=num_layers))

    def make_steps(self, count: int, numbers: LearnedPositions | SinusoidalPositions, _embed_dim: int) -> FixedSteps:
        """Return the module that applies the layer ``count`` times."""
        return FixedSteps(count, numbers)

    def apply_layers(self, x: Tensor, index: Tensor, padding_mask: Tensor | None) -> Tensor:
        def step(_: int, x: Tensor) -> Tensor:
            return self.run_layer(self.decoder_layers[0], x, padding_mask)

        return self.layer_stack(step, x, padding_mask, self.decoder_embedding.positions(index))

    def read_layers(
        self, x: Tensor, state: DecodingState, padding_mask: Tensor | None = None
    ) -> tuple[Tensor, DecodingState]:
        layers, after = self.decoder_layers.executions(), []

        def step(number: int, x: Tensor) -> Tensor:
            x, new = layers[number].read(x, state.layers[number], padding_mask)
            after.append(new)
            return x

        index = state.lengths.unsqueeze(1) + number_positions(x[..., 0], padding_mask)
        x = self.layer_stack(step, x, padding_mask, self.decoder_embedding.positions(index))
        return x, state.after(tuple(after), x.shape[1], padding_mask)


@register_backbone("gpt2_act", paper="Dehghani et al. 2019", tasks={"lm": "CS"})
class AdaptiveGPT2(UniversalGPT2):
    """Universal GPT-2 with adaptive computation time: each token halts after at most ``num_layers`` steps.

    A ponder cost is added to the loss.

    Args: as for ``gpt2``.
    """

    def make_steps(self, count: int, numbers: LearnedPositions | SinusoidalPositions, embed_dim: int) -> FixedSteps:
        return HaltingSteps(count, numbers, embed_dim=embed_dim)


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
        numbers: vectors of the step numbers, added to the state before each step together with the positions (at the
            first step, whose input already contains the positions, alone).
    """

    def __init__(self, count: int, numbers: LearnedPositions | SinusoidalPositions) -> None:
        super().__init__()
        self.count, self.numbers = count, numbers

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

    def __init__(self, count: int, numbers: LearnedPositions | SinusoidalPositions, *, embed_dim: int) -> None:
        super().__init__(count, numbers)
        self.halting = nn.Linear(embed_dim, 1)
        nn.init.constant_(self.halting.bias, HALTING_BIAS)
        self.ponder = Ponder()

    def forward(self, step: Step, x: Tensor, padding_mask: Tensor | None, positions: Tensor) -> Tensor:
        output, spent = torch.zeros_like(x), x.new_zeros(x.shape[:2])  # spent: p_1 + p_2 + ... of each token
        num_steps, remainder = torch.zeros_like(spent), torch.zeros_like(spent)
        runs = torch.ones_like(spent, dtype=torch.bool)
        for index in range(self.count):
            x = torch.where(runs.unsqueeze(-1), step(index, self.embed_step(x, index, positions)), x)
            p = self.halting(x).squeeze(-1).sigmoid().to(x.dtype)
            ends = runs & ((spent + p >= 1 - HALTING_EPSILON) | (index == self.count - 1))
            weight = torch.where(ends, 1 - spent, p * runs)
            output = output + weight.unsqueeze(-1) * x
            remainder = remainder + weight * ends
            spent, num_steps, runs = spent + weight, num_steps + runs, runs & ~ends
        self.ponder(num_steps, remainder, padding_mask)
        return output


class Ponder(TrainableModule):
    """Add the ponder cost to the training loss; forward hooks observe the number of steps per token."""

    def forward(self, num_steps: Tensor, remainder: Tensor, padding_mask: Tensor | None) -> None:
        """Record steps N and remainders R of the tokens, [B, N] each."""
        self.add_loss(PONDER_WEIGHT * (num_steps + remainder), PaddingMasks(query=padding_mask))
