"""Build attentions and backbones by name; every mistake is found here, before any data is read."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cab.attention import SINGLE_LAYER, Attention, LayerPosition
from cab.backbone import AttentionFactory, AttentionSpec, Backbone
from cab.errors import UnsupportedError, UserError
from cab.patterns import Pattern
from cab.registry.registries import ATTENTIONS, BACKBONES, AttentionEntry


def build_attention(
    name: str,
    *,
    pattern: Pattern | str,
    embed_dim: int,
    num_heads: int,
    dropout: float = 0.0,
    layer_position: LayerPosition = SINGLE_LAYER,
    **options: Any,
) -> Attention:
    """The attention called ``name`` for one pattern; ``options`` are its constructor's keyword arguments.

    ``depth`` is where it will stand in a network, for the methods that depend on it.

    Raises:
        ValueError: unknown name, a pattern or option it does not have, or dimensions that do not fit.
    """
    return make_attention(
        AttentionSpec(name, options),
        Pattern.parse(pattern),
        embed_dim=embed_dim,
        num_heads=num_heads,
        dropout=dropout,
        layer_position=layer_position,
    )


def make_attention(
    spec: AttentionSpec,
    pattern: Pattern,
    *,
    embed_dim: int,
    num_heads: int,
    dropout: float = 0.0,
    layer_position: LayerPosition = SINGLE_LAYER,
    allow_unsound: bool = False,
) -> Attention:
    """:func:`build_attention` from a spec; ``allow_unsound`` admits patterns that only published runs used."""
    check_attention(spec, pattern, allow_unsound=allow_unsound)
    cls = ATTENTIONS.get(spec.name).cls
    given = {"layer_position": layer_position} if "layer_position" in inspect.signature(cls).parameters else {}
    return cls(pattern=pattern, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout, **given, **spec.options)


def check_attention(spec: AttentionSpec, pattern: Pattern, *, allow_unsound: bool = False) -> None:
    """UserError when the attention does not exist, does not serve ``pattern`` or lacks an option."""
    entry = ATTENTIONS.get(spec.name)
    allowed = entry.patterns + (entry.unsound if allow_unsound else ())
    if pattern not in allowed:
        others = [other.name for other in ATTENTIONS if pattern in other.patterns]
        raise UnsupportedError(
            f"attention '{spec.name}' does not support pattern {pattern}; it supports "
            f"{' '.join(entry.patterns)}. For {pattern} choose one of: {', '.join(others)}"
        )
    entry.check_options(spec.options, "attention")


def build_backbone(
    name: str,
    *,
    attention: str | Mapping[str, Any] | AttentionSpec = "vanilla",
    pattern: Pattern | str,
    other_attention: str | Mapping[str, Any] = "vanilla",
    **options: Any,
) -> Backbone:
    """The backbone called ``name`` with ``attention`` in its slots of ``pattern``.

    Args:
        attention: a name, or a mapping of ``name`` and its options.
        pattern: the pattern under test; the backbone must have a slot of it.
        elsewhere: what fills the other slots: a name, or a mapping from pattern to name.
        options: the backbone's keyword arguments.

    Raises:
        ValueError: an unknown name, pattern or option, or no slot of the pattern.
    """
    pattern = Pattern.parse(pattern)
    spec = parse_spec(attention)
    check_attention(spec, pattern)
    entry = BACKBONES.get(name)
    entry.check_options(options, "backbone")
    backbone: Backbone = entry.cls(
        make_attention=AttentionFactory(pattern, spec, parse_other_attention(other_attention), make_attention),
        **options,
    )
    check_slot(name, pattern, {slot for _, slot in backbone.attention_layers()})
    return backbone


def check_slot(backbone: str, pattern: Pattern, slots: set[Pattern]) -> None:
    """UserError when ``pattern`` is not among the backbone's ``slots``."""
    if pattern not in slots:
        has = " ".join(p for p in Pattern if p in slots)
        raise UnsupportedError(f"backbone '{backbone}' has no slot of pattern {pattern}; it has {has}")


class _WithoutValues(TorchFunctionMode):
    """Leaves out ``normal_``: on the meta device it would import torch's compiler, as long as torch itself takes."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "normal_":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Modules made inside are on the meta device: their names and shapes, and nothing else."""
    with torch.device("meta"), _WithoutValues():
        yield


@functools.cache
def backbone_patterns(name: str) -> tuple[Pattern, ...]:
    """The patterns of a backbone's slots, read from the network itself (built without memory)."""
    entry = BACKBONES.get(name)
    if entry.cls.all_layers_use_tested_pattern:
        return tuple(Pattern)
    vanilla = AttentionSpec("vanilla")
    with without_memory():
        backbone = entry.cls(
            make_attention=AttentionFactory(Pattern.NS, vanilla, dict.fromkeys(Pattern, vanilla), make_attention)
        )
    slots = {pattern for _, pattern in backbone.attention_layers()}
    return tuple(pattern for pattern in Pattern if pattern in slots)


def parse_spec(attention: str | Mapping[str, Any] | AttentionSpec) -> AttentionSpec:
    """A name, or a mapping of ``name`` and options, as a spec."""
    if isinstance(attention, AttentionSpec):
        return attention
    if isinstance(attention, str):
        return AttentionSpec(attention)
    if not isinstance(attention, Mapping) or "name" not in attention:
        raise UserError(f"an attention is a name or a mapping with 'name', got {attention!r:.60}")
    return AttentionSpec(attention["name"], {k: v for k, v in attention.items() if k != "name"})


def parse_other_attention(other_attention: str | Mapping[str, Any]) -> dict[Pattern, AttentionSpec]:
    """What fills the slots outside the test: one name for all, or one for each pattern (vanilla if unnamed)."""
    chosen = dict.fromkeys(Pattern, other_attention) if isinstance(other_attention, str) else other_attention
    specs = {Pattern.parse(pattern): parse_spec(attention) for pattern, attention in chosen.items()}
    for spec in specs.values():
        ATTENTIONS.get(spec.name).check_options(spec.options, "attention")
    return {pattern: specs.get(pattern, AttentionSpec("vanilla")) for pattern in Pattern}


def decoding_state(entry: AttentionEntry) -> str:
    """Return the size of the decode state of one sequence in one layer, in the first causal pattern.

    The layer has 8 heads of width 64 and a float32 state. The size is measured after 512 and 1,024 tokens: ``N B`` if
    it does not depend on the length, ``N B/token`` if it grows; empty for an attention without a causal pattern.
    """
    pattern = next((p for p in entry.patterns if p.is_causal), None)
    if pattern is None:
        return ""
    attention = build_attention(entry.name, pattern=pattern, embed_dim=512, num_heads=8).eval()
    before, after = attention.state_bytes(512), attention.state_bytes(1024)
    growth = (after - before) / 512
    return f"{growth:,.0f} B/token" if growth else f"{after:,} B"
