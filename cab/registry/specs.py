"""Names with options, checked against the registries without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cab.errors import UnsupportedError, UserError
from cab.patterns import Pattern
from cab.registry.registries import ATTENTIONS
from cab.spec import Spec

OtherAttention = str | Mapping[str, Any] | Mapping[Pattern, Spec]


def parse_spec(attention: str | Mapping[str, Any] | Spec) -> Spec:
    """Return the spec of a name, or of a mapping of ``name`` and options, whose values are checked."""
    if isinstance(attention, Spec):
        return attention
    if isinstance(attention, str):
        attention = {"name": attention}
    if not isinstance(attention, Mapping) or "name" not in attention:
        raise UserError(f"an attention must be a name or a mapping with 'name', got {attention!r:.60}")
    spec = Spec.of(attention)
    return Spec(spec.name, ATTENTIONS.get(spec.name).check_options(spec.options, "attention"))


def parse_other_attention(other_attention: OtherAttention) -> dict[Pattern, Spec]:
    """Return the spec per pattern of the attention outside the test, from one or a mapping (default: vanilla)."""
    if isinstance(other_attention, str):
        return dict.fromkeys(Pattern, parse_spec(other_attention))
    specs = {Pattern.parse(pattern): parse_spec(attention) for pattern, attention in other_attention.items()}
    return {pattern: specs.get(pattern, Spec("vanilla")) for pattern in Pattern}


def by_part(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with those of the parts of a stack, such as ``local.window_size``, in mappings."""
    nested: dict[str, Any] = {}
    for path, value in options.items():
        part, _, option = path.rpartition(".")
        (nested.setdefault(part, {}) if part else nested)[option] = value
    return nested


def check_pattern(spec: Spec, pattern: Pattern, *, allow_unsound: bool = False) -> None:
    """Raise UserError if the attention does not exist or does not support ``pattern``."""
    entry = ATTENTIONS.get(spec.name)
    allowed = entry.patterns + (entry.unsound if allow_unsound else ())
    if pattern not in allowed:
        raise UnsupportedError(
            f"attention '{spec.name}' does not support pattern {pattern} (supported: {entry.supported}); "
            "`cab list attentions` prints the patterns of each"
        )


def check_slot(backbone: str, pattern: Pattern, slots: set[Pattern]) -> None:
    """Raise UserError if ``pattern`` is not among the patterns of the backbone's attention layers (``slots``)."""
    if pattern not in slots:
        has = " ".join(p for p in Pattern if p in slots)
        raise UnsupportedError(
            f"backbone '{backbone}' has no attention layer with pattern {pattern} (supported: {has})"
        )
