"""Build attentions and backbones by name; invalid names and options are rejected before any data is read."""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cab.attention import SINGLE_LAYER, Attention, LayerPosition
from cab.backbone import AttentionFactory, Backbone
from cab.composite import count_layers
from cab.construction import build_layer
from cab.errors import UserError, exits_as_errors, first_line
from cab.patterns import Pattern
from cab.registry.entries import AttentionEntry
from cab.registry.registries import ATTENTIONS, BACKBONES
from cab.registry.specs import OtherAttention, check_pattern, check_slot, parse_other_attention, parse_spec
from cab.registry.stacks import StackEntry
from cab.spec import Spec


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
    """Build an attention for one pattern.

    Args:
        name: registered name, ``FILE.py:Class``, or a stack of names, such as ``gla*3,vanilla`` or ``local+linear``.
        pattern: attention pattern.
        embed_dim: width of the inputs and outputs; a multiple of ``num_heads``.
        num_heads: number of heads.
        dropout: dropout probability of the attention weights.
        layer_position: position among the network's attention layers, for stacks, and for methods that depend on it.
            Without it, a stack is a network of its layers with residual connections.
        options: other keyword arguments of the constructor; those of a stack are mappings by part.

    Raises:
        UserError: the name is unknown, the pattern or an option is not supported, or the dimensions are invalid.
    """
    return make_attention(
        parse_spec({"name": name, **options}),
        Pattern.parse(pattern),
        embed_dim=embed_dim,
        num_heads=num_heads,
        dropout=dropout,
        layer_position=layer_position,
    )


def make_attention(
    spec: Spec,
    pattern: Pattern,
    *,
    embed_dim: int,
    num_heads: int,
    dropout: float = 0.0,
    layer_position: LayerPosition = SINGLE_LAYER,
    allow_unsound: bool = False,
) -> Attention:
    """Build an attention from a spec whose options are checked; see :func:`build_attention`.

    ``allow_unsound`` allows patterns that are registered as ``unsound``, for layers outside the test.
    """
    check_pattern(spec, pattern, allow_unsound=allow_unsound)
    entry = ATTENTIONS.get(spec.name)
    layers = entry.layers_at(layer_position, pattern) if isinstance(entry, StackEntry) else ()
    sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "dropout": dropout}
    return build_layer(entry.cls, layer_position, spec.options, layers=layers, pattern=pattern, **sizes)


def build_backbone(
    name: str,
    *,
    attention: str | Mapping[str, Any] | Spec = "vanilla",
    pattern: Pattern | str,
    other_attention: OtherAttention = "vanilla",
    **options: Any,
) -> Backbone:
    """Build a backbone with ``attention`` in its attention layers of ``pattern``.

    Args:
        name: registered name.
        attention: name, or mapping of ``name`` and options. ``none`` removes the attention from these layers.
        pattern: pattern under test; the backbone must have an attention layer of it.
        other_attention: attention in all other layers: a name, or a mapping from pattern to name or spec.
        options: other keyword arguments of the constructor.

    Raises:
        UserError: a name, pattern or option is invalid, or the backbone has no attention layer of the pattern.
    """
    pattern = Pattern.parse(pattern)
    spec = parse_spec(attention)
    check_pattern(spec, pattern)
    BACKBONES.get(name).check_options(options, "backbone")
    factory = AttentionFactory(pattern, spec, parse_other_attention(other_attention), make_attention)
    return make_backbone(name, factory, options)


def make_backbone(name: str, factory: AttentionFactory, options: Mapping[str, Any]) -> Backbone:
    """Build a backbone from options that are checked; see :func:`build_backbone`."""
    backbone: Backbone = BACKBONES.get(name).cls(make_attention=factory, **options)
    check_slot(name, factory.pattern, {slot for _, slot in backbone.attention_layers()})
    return backbone


class _WithoutValues(TorchFunctionMode):
    """Skip ``normal_``, which imports torch's compiler on the meta device and takes as long as ``import torch``."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") == "normal_":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Create modules on the meta device inside the block: parameters have names and shapes, but no values."""
    with torch.device("meta"), _WithoutValues():
        yield


@functools.cache
def backbone_patterns(name: str) -> tuple[Pattern, ...]:
    """Return the patterns of a backbone's attention layers, from a network that is built without memory."""
    entry = BACKBONES.get(name)
    if entry.cls.all_layers_use_tested_pattern:
        return tuple(Pattern)
    vanilla = Spec("vanilla")
    with without_memory():
        backbone = entry.cls(
            make_attention=AttentionFactory(Pattern.NS, vanilla, dict.fromkeys(Pattern, vanilla), make_attention)
        )
    patterns = {pattern for _, pattern in backbone.attention_layers()}
    return tuple(pattern for pattern in Pattern if pattern in patterns)


def measure_decode_state(entry: AttentionEntry) -> str:
    """Return the size of the decode state of one sequence in one layer, in the first causal pattern.

    The layer has 8 heads of width 64 and a float32 state. The size is measured after 512 and 1,024 tokens: ``N B`` if
    it does not depend on the length, ``N B/token`` if it grows; empty for an attention without a causal pattern.
    """
    pattern = next((p for p in entry.patterns if p.is_causal), None)
    if pattern is None:
        return ""
    try:
        with exits_as_errors():
            attention = build_attention(entry.name, pattern=pattern, embed_dim=512, num_heads=8).eval()
            before, after = state_bytes(attention, 512), state_bytes(attention, 1024)
    except Exception as error:  # of any kind, in the code of a user
        raise UserError(
            f"attention '{entry.name}' cannot be built and decoded with pattern {pattern}: {type(error).__name__}: "
            f"{first_line(error)}. Run: `cab verify {shlex.quote(entry.name)} --pattern {pattern}`"
        ) from error
    growth = (after - before) / 512
    return f"{growth:,.0f} B/token" if growth else f"{after:,} B"


def state_bytes(attention: Attention, num_tokens: int) -> int:
    """Measure the bytes of the decode state of one sequence and layer after ``num_tokens`` tokens."""
    return sum(tensor.nbytes for tensor in decode_state(attention, num_tokens).values()) // count_layers(attention)


@torch.no_grad()
def decode_state(attention: Attention, num_tokens: int) -> dict[str, Tensor]:
    """Return the decode state of one sequence after ``num_tokens`` tokens, by decoding zeros, in CC of as many keys."""
    tokens = next(attention.parameters(), torch.empty(0)).new_zeros(1, num_tokens, attention.embed_dim)
    source = tokens if attention.pattern.is_cross else None
    state = attention.init_state(1, key=source, value=source)
    if not attention.has_constant_size_state:
        _, state = attention.prefill(tokens, state)
    return state
