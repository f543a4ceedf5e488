"""Modules and functions of other packages behind the call signature of the conformance suite."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cab.claims import Claims
from cab.patterns import Pattern
from cab.verification.inputs import LAYOUTS

ARGUMENTS = ("pattern", "embed_dim", "num_heads", "dropout")
"""Arguments that a factory may accept."""

DECLARATIONS = (
    "padding_layouts",
    "prompt_padding_layouts",
    "decode_tolerance",
    "claims",
    "max_token_distance",
    "autocast_dtypes",
    "length_multiple",
)
"""Class attributes that a module may declare."""

DECODING = ("init_state", "step", "prefill")
"""Methods of this project's contract that a module may have."""

CAUSAL = ("causal", "is_causal")
"""Names of the argument that selects causal attention."""


class ForeignModule(nn.Module):
    """A module of another package.

    The rules of this project that are not properties of an attention in general do not apply: no parameter budget, no
    ``ValueError`` for invalid calls, and finite values instead of NaN in the padding.

    Attributes:
        package: distribution that provides the module; its version is recorded with the verification. Empty for a file.
        patterns: patterns in which the module can run.
        padding_layouts: padding layouts that the module supports.
        claims: residual connections and MLPs leave most of an output to its own token.
    """

    is_foreign: ClassVar[bool] = True
    package: ClassVar[str] = ""
    patterns: ClassVar[tuple[Pattern, ...]] = tuple(Pattern)
    padding_layouts: tuple[str, ...] = ("right", "left")
    claims: Claims = Claims(max_self_contribution=0.9999)

    embed_dim: int


class WrappedModule(ForeignModule):
    """A module built by a factory, called according to the arguments of its ``forward``.

    * ``query_padding_mask`` and ``key_padding_mask``: the call of this project.
    * ``attn_mask`` and ``key_padding_mask``: the call of ``torch.nn.MultiheadAttention``.
    * Otherwise: ``forward(x)`` or ``forward(query, key, value)``, without padding.
    """

    factory: ClassVar[Callable[..., nn.Module]]

    def __init__(
        self, *, pattern: Pattern | str, embed_dim: int = 32, num_heads: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.pattern = Pattern.parse(pattern)
        arguments = {"pattern": self.pattern, "embed_dim": embed_dim, "num_heads": num_heads, "dropout": dropout}
        self.module = build_from(type(self).factory, arguments)
        self.embed_dim = getattr(self.module, "embed_dim", embed_dim)

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, **masks: Tensor) -> Tensor:
        names = _arguments(self.module)
        source = () if key is None else (key, value)
        if "query_padding_mask" in names or "kwargs" in names:
            return self.module(query, *source, **masks)
        if "attn_mask" not in names:
            return self.module(query, *source)
        order = None
        if self.pattern is Pattern.CS:
            order = torch.ones(query.shape[1], query.shape[1], dtype=torch.bool, device=query.device).triu(1)
        padding = masks.get("key_padding_mask")
        output = self.module(query, *(source or (query, query)), key_padding_mask=padding, attn_mask=order)
        return output[0] if isinstance(output, tuple) else output


class FunctionAttention(ForeignModule):
    """A function of query, key and value [B, H, N, E] between linear projections, in all patterns and without padding.

    The argument ``causal`` or ``is_causal`` of the function is True in CS.
    """

    function: ClassVar[Callable[..., Any]]
    padding_layouts: tuple[str, ...] = ()

    def __init__(self, *, pattern: Pattern | str, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.pattern = Pattern.parse(pattern)
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, **masks: Tensor) -> Tensor:
        key, value = (query if x is None else x for x in (key, value))
        projected = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in projected)
        return self.out_proj(self.call(q, k, v, masks.get("key_padding_mask")).flatten(2))

    def call(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:  # noqa: ARG002
        """Return the outputs [B, N, H, E] of the function for heads [B, H, N, E]."""
        parameters = inspect.signature(type(self).function).parameters
        causal = {name: self.pattern is Pattern.CS for name in CAUSAL if name in parameters}
        return type(self).function(query, key, value, **causal).transpose(1, 2)


class HuggingFaceFunction(FunctionAttention):
    """An attention function of transformers' ``AttentionInterface``, with an additive mask as in eager attention."""

    package: ClassVar[str] = "transformers"
    padding_layouts = ("right", "left", "inside")
    is_causal = False
    num_key_value_groups = 1

    def call(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        allowed = query.new_ones(1, 1, query.shape[2], key.shape[2], dtype=torch.bool)
        if self.pattern is Pattern.CS:
            allowed = allowed.tril()
        if padding is not None:
            allowed = allowed & ~padding[:, None, None]
        # Some functions compute the softmax in float32 also for float64 inputs.
        lowest = max(torch.finfo(query.dtype).min, torch.finfo(torch.float32).min)
        mask = torch.zeros_like(allowed, dtype=query.dtype).masked_fill(~allowed, lowest)
        scaling = query.shape[-1] ** -0.5
        outputs, _ = type(self).function(self, query, key, value, mask, dropout=0.0, scaling=scaling, is_causal=False)
        return outputs


def build_from(factory: Callable[..., nn.Module], arguments: Mapping[str, Any]) -> nn.Module:
    """Call a factory with those of the arguments that it accepts, and ``batch_first``."""
    parameters = inspect.signature(factory).parameters
    return factory(**{name: value for name, value in {**arguments, "batch_first": True}.items() if name in parameters})


def declarations_of(factory: Callable[..., nn.Module]) -> dict[str, Any]:
    """Return the class attributes for the modules of ``factory``: their declarations and methods for decoding."""
    with torch.random.fork_rng(devices=[]):
        module = build_from(factory, {"pattern": Pattern.NS, "embed_dim": 32, "num_heads": 4, "dropout": 0.0})
    names = _arguments(module)
    has_masks = "kwargs" in names or "query_padding_mask" in names or {"attn_mask", "key_padding_mask"} <= names
    declared: dict[str, Any] = {"padding_layouts": LAYOUTS if has_masks else ()}
    declared |= {name: getattr(module, name) for name in DECLARATIONS if hasattr(module, name)}
    return declared | {name: _delegated(name) for name in DECODING if hasattr(module, name)}


def _delegated(name: str) -> Callable[..., Any]:
    """Return a method that calls the wrapped module's method ``name``."""

    def call(self: WrappedModule, *arguments: Any, **options: Any) -> Any:
        return getattr(self.module, name)(*arguments, **options)

    return call


def _arguments(module: nn.Module) -> set[str]:
    """Return the names of the arguments of ``forward``, with ``kwargs`` for any keyword arguments."""
    parameters = inspect.signature(module.forward).parameters
    return {"kwargs" if p.kind is p.VAR_KEYWORD else name for name, p in parameters.items()}
