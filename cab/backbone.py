"""The base class of every backbone, and what fills its attention slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from cab.attention import Attention, LayerPosition
from cab.patterns import Pattern
from cab.training import recompute


@dataclass(frozen=True)
class AttentionSpec:
    """An attention by name, with the options of its constructor."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AttentionFactory:
    """Puts the attention under test into the slots of its pattern, and the ``other_attention`` ones into the rest.

    A backbone receives it as ``make_attention`` and calls it once for each of its slots. ``make`` builds an attention
    from its spec (:func:`cab.registry.build.make_attention`).
    """

    pattern: Pattern
    attention: AttentionSpec
    other_attention: Mapping[Pattern, AttentionSpec]
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
        """The attention for one slot of ``pattern``, at ``layer_position`` among the backbone's slots of that kind."""
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
    """A network with attention slots. Its constructor takes ``make_attention`` (an :class:`AttentionFactory`) and
    options.

    ``checkpoint_activations``: training keeps what enters a layer, and forms the rest anew in the backward pass.
    ``all_layers_use_tested_pattern``: every slot is of the pattern under test, so each pattern has a network of its
    own. ``gives_losses``: called with ``targets=`` too, a language model gives their negative log-likelihoods, not
    logits.
    """

    checkpoint_activations = False
    all_layers_use_tested_pattern: ClassVar[bool] = False
    gives_losses: ClassVar[bool] = False

    def run_layer(self, layer: nn.Module, *inputs: Any) -> Any:
        """``layer(*inputs)``, one of those whose activations can be formed anew."""
        if self.checkpoint_activations and self.training:
            return recompute(layer, *inputs)
        return layer(*inputs)

    def attention_layers(self) -> list[tuple[str, Pattern]]:
        """(path, pattern) of every slot, in the order of the modules; an attention within another is none."""
        slots: list[tuple[str, Pattern]] = []
        for path, module in self.named_modules():
            if isinstance(module, Attention) and not (slots and path.startswith(f"{slots[-1][0]}.")):
                slots.append((path, module.pattern))
        return slots
