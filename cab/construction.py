"""Construction of the attention of one layer of a network, from its class and options or from those of a stack."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cab.attention import SINGLE_LAYER, Attention, LayerPosition
from cab.composite import Names, build_part


def layers_at(period: Sequence[tuple[str, ...]], position: LayerPosition) -> list[tuple[str, ...]]:
    """Return the names in the layer at a position of a network, or, outside one, in each layer of the shortest period.

    Outside a network, only the shares matter: linear*6,vanilla*6 is linear,vanilla.
    """
    if position is not SINGLE_LAYER:
        return [period[position.index % len(period)]]
    counts = Counter(period)
    divisor = math.gcd(*counts.values())
    return [layer for layer, count in counts.items() for _ in range(count // divisor)]


def build_layer(
    cls: type[Attention],
    layer_position: LayerPosition,
    options: Mapping[str, Any],
    *,
    layers: Names = (),
    **common: Any,
) -> Attention:
    """Build the attention of a layer; ``layers`` are those of a stack, of which a single attention is built alone."""
    if len(layers) == 1 and len(layers[0]) == 1:
        (part,) = layers[0]
        cls, options = getattr(cls, "parts")[part], options.get(part, {})  # noqa: B009  # of a Composite
    elif layers:
        options = {"layers": layers, **options}
    return build_part(cls, layer_position, **common, **options)
