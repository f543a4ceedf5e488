"""GPT-2 with reversible layers (Gomez et al. 2017; Kitaev et al. 2020). Attention layers: CS."""

from __future__ import annotations

from functools import partial
from typing import Any

from backbones.gpt2 import GPT2
from backbones.layers.branches import BranchLayer
from backbones.layers.reversible import ReversibleStack
from backbones.layers.transformer import LayerStack, ResidualKind, stack
from cab import UserError, register_backbone


@register_backbone("gpt2_reversible", paper="Kitaev et al. 2020", tasks={"lm": "CS"})
class ReversibleGPT2(GPT2):
    """GPT-2 with two streams, whose activation memory barely grows with depth (:mod:`backbones.layers.reversible`).

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
