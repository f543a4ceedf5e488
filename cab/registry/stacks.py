"""Entries of stacks, which are composed of registered attentions by name: ``gla*3,vanilla`` or ``local+linear``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cab.errors import UnsupportedError, UserError
from cab.patterns import Pattern
from cab.registry.entries import AttentionEntry, RegistryEntry
from cab.registry.names import layers_of, stack_name
from cab.registry.outlines import Location

if TYPE_CHECKING:
    from cab.attention import Attention, LayerPosition

COMPLEXITIES = ("1", "n", "n log n", "n sqrt n", "n^2")


@dataclass(frozen=True, kw_only=True)
class StackEntry(AttentionEntry):
    """A stack, whose period ``layers`` is repeated to the depth of a network; its options are those of its parts."""

    layers: tuple[tuple[AttentionEntry, ...], ...]

    @functools.cached_property
    def parts(self) -> dict[str, AttentionEntry]:
        """The different attentions by the names that options and tables use."""
        return {part.label: part for layer in self.layers for part in layer}

    @functools.cached_property
    def cls(self) -> type[Attention]:
        """The class of a network with one layer of each kind, which `cab verify` checks; its code is that of all."""
        from cab.attention import Attention  # imports torch
        from cab.claims import Claims
        from cab.composite import Composite

        classes = {name: part.cls for name, part in self.parts.items()}
        claims, dtypes = [cls.claims for cls in classes.values()], [cls.autocast_dtypes for cls in classes.values()]
        members = {
            "__module__": Composite.__module__,
            "__doc__": Composite.__doc__,
            "parts": classes,
            "kinds": tuple(dict.fromkeys(map(labels, self.layers))),
            "version": 1 + sum(getattr(cls, "version", 1) - 1 for cls in classes.values()),
            "renamed": {
                f"{name}.{option}": f"{name}.{earlier}"
                for name, cls in classes.items()
                for option, earlier in getattr(cls, "renamed", {}).items()
            },
            "has_constant_size_state": all(cls.has_constant_size_state for cls in classes.values()),
            "autocast_dtypes": tuple(dtype for dtype in Attention.autocast_dtypes if all(dtype in x for x in dtypes)),
            "claims": Claims(
                has_exact_gradient=all(one.has_exact_gradient for one in claims),
                uses_key=any(one.uses_key for one in claims),
                max_self_contribution=max(one.max_self_contribution for one in claims),
                parameter_budget=float(len(claims)),  # it has the projections of every part
                float32_devices=tuple(x for x in Claims.float32_devices if all(x in c.float32_devices for c in claims)),
            ),
        }
        return type(self.label, (Composite,), members)

    @functools.cached_property
    def options(self) -> dict[str, Any]:
        """The options of each part that has any, by its name."""
        return {name: part.options for name, part in self.parts.items() if part.options}

    @property
    def supported(self) -> str:
        return ", ".join(f"{part.label} {part.supported}" for part in self.parts.values())

    def check_options(self, options: Mapping[str, Any], kind: str) -> dict[str, Any]:
        checked = {}
        for name, own in options.items():
            if name not in self.parts or not isinstance(own, Mapping):
                example = next((f"{part}.{option}" for part, all_ in self.options.items() for option in all_), "")
                hint = f"; set those of a part, such as {kind}.{example}" if example else ""
                raise UserError(f"stack '{self.label}' has no option '{name}' (parts: {', '.join(self.parts)}){hint}")
            checked[name] = self.parts[name].check_options(own, f"{kind}.{name}")
        return checked

    def has_option(self, path: str) -> bool:
        name, _, option = path.partition(".")
        return name in self.parts and self.parts[name].has_option(option)

    def layers_at(self, position: LayerPosition, pattern: Pattern) -> list[tuple[str, ...]]:
        """Return the names in each layer of :func:`cab.construction.layers_at`.

        Raises:
            UnsupportedError: the network has fewer layers than the period, so that it would lack some.
        """
        from cab.attention import SINGLE_LAYER  # imports torch
        from cab.construction import layers_at

        if position is not SINGLE_LAYER and position.num_layers < len(self.layers):
            raise UnsupportedError(
                f"stack '{self.label}' has {len(self.layers)} layers, and the network only {position.num_layers} with "
                f"pattern {pattern}: use a shorter stack, or a deeper network (options backbone.num_layers, "
                "encoder_layers and decoder_layers)"
            )
        return layers_at(list(map(labels, self.layers)), position)


def parts_of(entry: RegistryEntry[Any]) -> dict[str, RegistryEntry[Any]]:
    """Return entries by the prefix of their options: the parts of a stack, or the entry itself."""
    parts = entry.parts.items() if isinstance(entry, StackEntry) else ()
    return {f"{name}.": part for name, part in parts} or {"": entry}


def labels(layer: tuple[AttentionEntry, ...]) -> tuple[str, ...]:
    """Return the names of the attentions in a layer."""
    return tuple(part.label for part in layer)


def compose_stack(name: str, get: Callable[[str], AttentionEntry]) -> StackEntry:
    """Return the entry of a stack, whose parts ``get`` returns by name; UserError for a stack that cannot exist."""
    return _composed(tuple(tuple(map(get, layer)) for layer in layers_of(name)))


@functools.cache
def _composed(layers: tuple[tuple[AttentionEntry, ...], ...]) -> StackEntry:
    parts = list(dict.fromkeys(part for layer in layers for part in layer))
    label = stack_name(list(map(labels, layers)))
    if len({part.label for part in parts}) < len(parts):
        raise UserError(f"two attentions of the stack '{label}' have the same name; rename one class")
    patterns = tuple(pattern for pattern in Pattern if all(pattern in part.patterns for part in parts))
    grown = [part.complexity for part in parts]
    return StackEntry(
        name=stack_name([[part.name for part in layer] for layer in layers]),
        label=label,
        paper="; ".join(dict.fromkeys(part.paper for part in parts)),
        location=Location("cab.composite", label),
        patterns=patterns,
        unsound=tuple(p for p in Pattern if p not in patterns and all(p in x.patterns + x.unsound for x in parts)),
        complexity=max(grown, key=COMPLEXITIES.index) if all(grown) else "",
        layers=layers,
    )
