"""Base class of backbones, and the factory of their attention layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from cab.attention import Attention, LayerPosition
from cab.patterns import Pattern
from cab.spec import Spec
from cab.training import recompute


@dataclass(frozen=True)
class AttentionFactory:
    """Build the attention layers of a backbone.

    Layers of the pattern under test get the tested attention; all others get ``other_attention``. A backbone receives
    the factory as ``make_attention`` and calls it once per attention layer.

    Attributes:
        pattern: pattern under test.
        attention: attention under test.
        other_attention: attention for the layers of every other pattern.
        make: builds an attention from its spec (:func:`cab.registry.build.make_attention`).
    """

    pattern: Pattern
    attention: Spec
    other_attention: Mapping[Pattern, Spec]
    make: Callable[..., Attention]

    def __call__(
        self,
        pattern: Pattern | str,
        *,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        layer_position: LayerPosition,
    ) -> Attention:
        """Build one attention layer at a position among the backbone's layers of the same kind.

        Raises:
            UserError: the attention does not support the pattern or these dimensions.
        """
        pattern = Pattern.parse(pattern)
        under_test = pattern is self.pattern
        return self.make(
            self.attention if under_test else self.other_attention[pattern],
            pattern,
            embed_dim=embed_dim,
            num_heads=num_heads,
            dropout=dropout,
            layer_position=layer_position,
            allow_unsound=not under_test,
        )


class Backbone(nn.Module):
    """Base class of networks with attention layers.

    The constructor of a subclass takes ``make_attention`` (an :class:`AttentionFactory`), and its options as keyword
    arguments with defaults. ``forward`` and the other methods that a task calls are defined by the protocols in
    :mod:`cab.backbone_protocols`.

    Attributes:
        checkpoint_activations: store only the inputs of each layer in training, and recompute its activations in the
            backward pass.
        all_layers_use_tested_pattern: every attention layer has the pattern under test, so each pattern has its own
            network.
        gives_losses: a language model that is called with ``targets=`` returns their negative log-likelihoods in nats
            instead of logits.
    """

    checkpoint_activations = False
    all_layers_use_tested_pattern: ClassVar[bool] = False
    gives_losses: ClassVar[bool] = False

    def run_layer(self, layer: nn.Module, *inputs: Any) -> Any:
        """Call ``layer(*inputs)``, with recomputed activations if ``checkpoint_activations`` is set."""
        if self.checkpoint_activations and self.training:
            return recompute(layer, *inputs)
        return layer(*inputs)

    def attention_layers(self) -> list[tuple[str, Pattern]]:
        """Return the module path and pattern of every attention layer, in module order.

        An attention inside another attention is not listed.
        """
        layers: list[tuple[str, Pattern]] = []
        for path, module in self.named_modules():
            if isinstance(module, Attention) and not (layers and path.startswith(f"{layers[-1][0]}.")):
                layers.append((path, module.pattern))
        return layers
