"""Attentions made of other attentions: in parallel in one layer, or in the layers of a stack."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from cab.attention import SINGLE_LAYER, Attention, CommonArguments, Decoded, DecodeState, LayerPosition
from cab.patterns import Pattern

Names = Sequence[Sequence[str]]
"""The attentions of each layer, by name."""


def build_part(cls: type[Attention], layer_position: LayerPosition, **arguments: Any) -> Attention:
    """Build an attention, with its layer position if its constructor has that argument."""
    if "layer_position" in inspect.signature(cls).parameters:
        arguments["layer_position"] = layer_position
    return cls(**arguments)


def count_layers(module: nn.Module) -> int:
    """Return the number of layers of a :class:`Composite`, by which its costs are divided; 1 for other modules."""
    return len(module.layers) if isinstance(module, Composite) else 1


class Composite(Attention):
    """Compute sum_l f_l(x + sum_(k<l) f_k), where f_l is the sum of the attentions of layer l.

    One layer is the sum of its attentions: since each has an output projection, it equals one projection of their heads
    side by side, as in TransNormer's parallel layer (Qin et al. 2022, Table 12). Several layers are a network with
    residual connections, without its input. Each attention has its own decode state.

    Attributes:
        parts: classes of the attentions by name.
        kinds: layers that are built by default, with dropout in the last one: the output is then linear in what is
            dropped, so `cab verify` can check its mean.

    Args:
        layers: layers to build instead.
        layer_position: position of the only layer.
        options: options of an attention, by its name.
    """

    parts: ClassVar[Mapping[str, type[Attention]]]
    kinds: ClassVar[Names]

    def __init__(
        self,
        *,
        pattern: Pattern | str,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        layers: Names = (),
        layer_position: LayerPosition = SINGLE_LAYER,
        **options: Mapping[str, Any],
    ) -> None:
        common = CommonArguments(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        super().__init__(**common)
        assert options.keys() <= self.parts.keys()
        is_default, layers = not layers, layers or self.kinds
        self.layers = nn.ModuleList()
        for index, layer in enumerate(layers):
            position = LayerPosition(index, len(layers)) if len(layers) > 1 else layer_position
            if is_default:
                common["dropout"] = dropout if index + 1 == len(layers) else 0.0
            parts = (build_part(self.parts[name], position, **common, **options.get(name, {})) for name in layer)
            self.layers.append(nn.ModuleList(parts))
        paths = {part: path for path, part in self.layers.named_modules() if isinstance(part, Attention)}
        absorbed = tuple(f"layers.{path}.{name}" for part, path in paths.items() for name in part.claims.absorbed)
        self.claims = dataclasses.replace(self.claims, absorbed=absorbed)

    def make_projections(self) -> None:
        """Create no projections: each attention has its own."""

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, **masks: Tensor | None
    ) -> Tensor:
        def call(_: str, part: Attention, x: Tensor) -> Tensor:
            part.use_reference = self.use_reference
            output: Tensor = part(x, key, value, **masks)
            return output

        return self._combine(query, call)

    def init_state(self, batch_size: int, **source: Any) -> DecodeState:
        return {
            f"{prefix}{name}": tensor
            for layer in self._prefixed()
            for prefix, part in layer
            for name, tensor in part.init_state(batch_size, **source).items()
        }

    def prefill(self, query: Tensor, state: DecodeState, *, query_padding_mask: Tensor | None = None) -> Decoded:
        after: DecodeState = {}

        def read(prefix: str, part: Attention, x: Tensor) -> Tensor:
            own = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
            output, own = part.prefill(x, own, query_padding_mask=query_padding_mask)
            after.update({f"{prefix}{name}": tensor for name, tensor in own.items()})
            return output

        return self._combine(query, read), after

    def _prefixed(self) -> list[list[tuple[str, Attention]]]:
        """Return the attentions of each layer, with the prefix of their decode state."""
        layers = cast(list[list[Attention]], self.layers)
        return [[(f"{i}.{j}.", part) for j, part in enumerate(layer)] for i, layer in enumerate(layers)]

    def _combine(self, query: Tensor, call: Callable[[str, Attention, Tensor], Tensor]) -> Tensor:
        """Sum the outputs of ``call``, which gets the prefix in the state, the attention and the input of each part."""
        outputs: list[Tensor] = []
        for layer in self._prefixed():
            x = sum(outputs, query)
            outputs += [call(prefix, part, x) for prefix, part in layer]
        return sum(outputs[1:], outputs[0])
