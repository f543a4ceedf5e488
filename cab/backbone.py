"""The base class of every backbone, and what fills its attention slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from cab.attention import Attention, Depth
from cab.patterns import Pattern
from cab.training import recompute


@dataclass(frozen=True)
class AttentionSpec:
    """An attention by name, with the options of its constructor."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SlotFiller:
    """Puts the attention under test into the slots of its pattern, and the ``elsewhere`` ones into the rest.

    A backbone receives it as ``slots`` and calls it once for each of its slots. ``make`` builds an attention from its
    spec (:func:`cab.registry.build.make_attention`).
    """

    pattern: Pattern
    attention: AttentionSpec
    elsewhere: Mapping[Pattern, AttentionSpec]
    make: Callable[..., Attention]

    def __call__(
        self, pattern: Pattern | str, *, embed_dim: int, num_heads: int, dropout: float = 0.0, depth: Depth
    ) -> Attention:
        """The attention for one slot of ``pattern``, at ``depth`` among the backbone's slots of that kind."""
        pattern = Pattern.parse(pattern)
        under_test = pattern is self.pattern
        return self.make(
            self.attention if under_test else self.elsewhere[pattern],
            pattern,
            embed_dim=embed_dim,
            num_heads=num_heads,
            dropout=dropout,
            depth=depth,
            allow_unsound=not under_test,
        )


class Backbone(nn.Module):
    """A network with attention slots. Its constructor takes ``slots`` (a :class:`SlotFiller`) and options.

    ``checkpoint_activations``: training keeps what enters a layer, and forms the rest anew in the backward pass.
    ``slots_follow_test``: every slot is of the pattern under test, so each pattern has a network of its own.
    ``gives_losses``: called with ``targets=`` too, a language model gives their negative log-likelihoods, not logits.
    """

    checkpoint_activations = False
    slots_follow_test: ClassVar[bool] = False
    gives_losses: ClassVar[bool] = False

    def run_layer(self, layer: nn.Module, *inputs: Any) -> Any:
        """``layer(*inputs)``, one of those whose activations can be formed anew."""
        if self.checkpoint_activations and self.training:
            return recompute(layer, *inputs)
        return layer(*inputs)

    def attention_slots(self) -> list[tuple[str, Pattern]]:
        """(path, pattern) of every slot, in the order of the modules; an attention within another is none."""
        slots: list[tuple[str, Pattern]] = []
        for path, module in self.named_modules():
            if isinstance(module, Attention) and not (slots and path.startswith(f"{slots[-1][0]}.")):
                slots.append((path, module.pattern))
        return slots
