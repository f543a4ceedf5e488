"""Selection of the layer stack from GPT-2's options."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from torch import nn

from backbones.layers.tokens import LearnedPositions, SinusoidalPositions
from backbones.layers.transformer import LayerStack, ResidualKind, TransformerLayer, stack
from cab import UserError

WeightSharing = Literal["stacked", "universal"]
Halting = Literal["fixed", "act"]
StepEmbedding = Literal["coordinates", "none"]


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """Options of :class:`backbones.gpt2.GPT2`, whose docstring describes them."""

    residual: ResidualKind
    reversible: bool
    weight_sharing: WeightSharing
    halting: Halting
    ponder_weight: float
    step_embedding: StepEmbedding
    checkpoint_activations: bool

    def make_steps(self, num_layers: int, embed_dim: int, *, learned: bool) -> nn.Module | None:
        """Check the options; return the step control of a universal network, or None for other networks.

        Step embeddings are ``learned`` or sinusoidal, like the positions.
        """
        self._check()
        if self.weight_sharing == "stacked":
            return None
        from backbones.layers.universal import FixedSteps, HaltingSteps

        embedding: LearnedPositions | SinusoidalPositions | None = None
        if self.step_embedding == "coordinates":
            embedding = LearnedPositions(num_layers, embed_dim) if learned else SinusoidalPositions(embed_dim, offset=1)
        if self.halting == "fixed":
            return FixedSteps(num_layers, embedding)
        return HaltingSteps(num_layers, embedding, embed_dim=embed_dim, ponder_weight=self.ponder_weight)

    def make_layers(self, num_layers: int, steps: Any, *arguments: Any, **options: Any) -> LayerStack:
        """Build the layers; ``arguments`` and ``options`` are those of :class:`TransformerLayer`.

        ``steps`` is the result of :meth:`make_steps`.
        """
        if self.reversible:
            from backbones.layers.reversible import ReversibleLayer, ReversibleStack

            return stack(num_layers, partial(ReversibleLayer, *arguments, **options), ReversibleStack)
        layer = partial(TransformerLayer, *arguments, residual=self.residual, **options)
        if steps is None:
            return stack(num_layers, layer)
        from backbones.layers.universal import UniversalStack

        return stack(1, layer, partial(UniversalStack, steps=steps))

    def _check(self) -> None:
        if not self.ponder_weight >= 0:
            raise UserError(f"ponder_weight must be 0 or more, got {self.ponder_weight}")
        if self.halting == "act" and self.weight_sharing == "stacked":
            raise UserError("halting=act needs one repeated layer: set weight_sharing=universal")
        if not self.reversible:
            return
        if self.checkpoint_activations:
            raise UserError("reversible=true recomputes activations already: remove checkpoint_activations=true")
        if self.residual != "plain":
            raise UserError("reversible=true cannot invert a gate: set residual=plain")
        if self.weight_sharing != "stacked":
            raise UserError("reversible=true needs separate weights per layer: set weight_sharing=stacked")
