"""GPT-2 with one layer applied repeatedly: Universal Transformer (Dehghani et al. 2019). Attention layers: CS."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn

from backbones.gpt2 import GPT2
from backbones.layers.decoder import DecodingState
from backbones.layers.tokens import LearnedPositions, SinusoidalPositions, number_positions
from backbones.layers.transformer import LayerStack, TransformerLayer, stack
from backbones.layers.universal import FixedSteps, HaltingSteps
from cab import register_backbone


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

    A ponder cost is added to the loss (:mod:`backbones.layers.universal`).

    Args: as for ``gpt2``.
    """

    def make_steps(self, count: int, numbers: LearnedPositions | SinusoidalPositions, embed_dim: int) -> FixedSteps:
        return HaltingSteps(count, numbers, embed_dim=embed_dim)
