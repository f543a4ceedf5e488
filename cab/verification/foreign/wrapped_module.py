"""Modules that a factory builds: ``torch.nn.MultiheadAttention``, modules with the same call, and any other module."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cab.patterns import Pattern
from cab.verification.foreign.base import ForeignModule
from cab.verification.inputs import LAYOUTS

ARGUMENTS = ("pattern", "embed_dim", "num_heads", "dropout")
"""Arguments that a factory may accept."""

DECLARATIONS = (
    "padding_layouts",
    "prompt_padding_layouts",
    "decode_tolerance",
    "has_exact_gradient",
    "autocast_dtypes",
)
"""Class attributes that a module may declare."""


class WrappedModule(ForeignModule):
    """A module built by a factory, called according to the arguments of its ``forward``.

    * ``query_padding_mask`` and ``key_padding_mask``: the call of this project.
    * ``attn_mask`` and ``key_padding_mask``: the call of ``torch.nn.MultiheadAttention``.
    * Otherwise: ``forward(x)`` or ``forward(query, key, value)``, without padding.

    Attributes:
        factory: class or function that builds the module.
    """

    factory: ClassVar[Callable[..., nn.Module]]

    def __init__(
        self, *, pattern: Pattern | str, embed_dim: int = 32, num_heads: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.pattern = Pattern.parse(pattern)
        given = {"pattern": self.pattern, "embed_dim": embed_dim, "num_heads": num_heads, "dropout": dropout}
        self.module = build_from(type(self).factory, given)
        self.embed_dim = getattr(self.module, "embed_dim", embed_dim)
        self.max_token_distance = getattr(self.module, "max_token_distance", None)
        self.has_exact_gradient = getattr(self.module, "has_exact_gradient", True)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        query_padding_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> Tensor:
        names = _arguments(self.module)
        source = () if key is None else (key, value)
        if "query_padding_mask" in names or "kwargs" in names:
            masks = {"query_padding_mask": query_padding_mask, "key_padding_mask": key_padding_mask}
            return self.module(query, *source, **{name: mask for name, mask in masks.items() if mask is not None})
        if "attn_mask" not in names:
            return self.module(query, *source)
        padding = query_padding_mask if key is None else key_padding_mask
        order = None
        if self.pattern is Pattern.CS:
            order = torch.ones(query.shape[1], query.shape[1], dtype=torch.bool, device=query.device).triu(1)
        output = self.module(query, *(source or (query, query)), key_padding_mask=padding, attn_mask=order)
        return output[0] if isinstance(output, tuple) else output


class DecodingModule(WrappedModule):
    """A wrapped module with ``init_state`` and ``step`` of this project's contract."""

    def init_state(self, batch_size: int, **source: Any) -> dict[str, Tensor]:
        """Return the state before the first token."""
        return self.module.init_state(batch_size, **source)  # type: ignore[operator]

    def step(self, query: Tensor, state: dict[str, Tensor], **mask: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Read one token."""
        return self.module.step(query, state, **mask)  # type: ignore[operator]


class PrefillingModule(DecodingModule):
    """A wrapped module that also has ``prefill``."""

    def prefill(self, query: Tensor, state: dict[str, Tensor], **mask: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Read several tokens."""
        return self.module.prefill(query, state, **mask)  # type: ignore[operator]


def build_from(factory: Callable[..., nn.Module], given: Mapping[str, Any]) -> nn.Module:
    """Call ``factory`` with the arguments that it accepts; ``batch_first`` is set to True if it is one."""
    names = inspect.signature(factory).parameters
    chosen = {name: value for name, value in {**given, "batch_first": True}.items() if name in names}
    return factory(**chosen)


def wrapper_of(factory: Callable[..., nn.Module], pattern: Pattern) -> tuple[type[WrappedModule], dict[str, Any]]:
    """Return the base class for the modules of ``factory``, and the declarations of these modules."""
    with torch.random.fork_rng(devices=[]):
        module = build_from(factory, {"pattern": pattern, "embed_dim": 32, "num_heads": 4, "dropout": 0.0})
    names = _arguments(module)
    has_masks = "kwargs" in names or "query_padding_mask" in names or {"attn_mask", "key_padding_mask"} <= names
    declared: dict[str, Any] = {"padding_layouts": LAYOUTS if has_masks else ()}
    declared |= {name: getattr(module, name) for name in DECLARATIONS if hasattr(module, name)}
    if not (hasattr(module, "init_state") and hasattr(module, "step")):
        return WrappedModule, declared
    return PrefillingModule if hasattr(module, "prefill") else DecodingModule, declared


def _arguments(module: nn.Module) -> set[str]:
    """Return the names of the arguments of ``forward``, with ``kwargs`` for any keyword arguments."""
    parameters = inspect.signature(module.forward).parameters
    return {"kwargs" if p.kind is p.VAR_KEYWORD else name for name, p in parameters.items()}
