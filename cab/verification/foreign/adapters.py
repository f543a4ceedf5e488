"""Modules and functions of other packages behind the call signature of the conformance suite."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from cab.claims import Claims
from cab.errors import UserError
from cab.patterns import Pattern
from cab.verification.inputs import LAYOUTS, arguments_of, takes_masks
from cab.verification.subject import PLAIN

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
    "selects_tokens",
    "internal_dtype",
    "unused_parameters",
    "has_constant_size_state",
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
        claims: those of a plain module.
    """

    package: ClassVar[str] = ""
    patterns: ClassVar[tuple[Pattern, ...]] = tuple(Pattern)
    padding_layouts: tuple[str, ...] = ("right", "left")
    claims: Claims = PLAIN

    embed_dim: int

    @classmethod
    def bound(cls, pattern: Pattern, options: Mapping[str, Any]) -> tuple[type[Self], dict[str, Any]]:
        """Return the class for a pattern and options, and the options of its constructor.

        Raises:
            UserError: the module does not run in the pattern, or has no such option.
        """
        if pattern not in cls.patterns:
            supported = ", ".join(map(str, cls.patterns))
            raise UserError(f"{cls.__name__} does not support pattern {pattern} (supported: {supported})")
        _check_options(cls.__name__, options, arguments_of(cls))
        return cls, dict(options)


class WrappedModule(ForeignModule):
    """A module built by a factory, called according to the arguments of its ``forward``.

    It receives those of ``query_padding_mask`` and ``key_padding_mask`` that it names; without them, there is no
    padding. With ``attn_mask``, it is called like ``torch.nn.MultiheadAttention``, which may return a tuple.
    """

    factory: ClassVar[Callable[..., nn.Module]]

    def __init__(
        self, *, pattern: Pattern | str, embed_dim: int = 32, num_heads: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.pattern = Pattern.parse(pattern)
        sizes = {"pattern": self.pattern, "embed_dim": embed_dim, "num_heads": num_heads, "dropout": dropout}
        factory = type(self).factory
        named = arguments_of(factory)
        accepted = sizes.keys() & named or (sizes.keys() if "kwargs" in named else set())
        arguments = {name: sizes[name] for name in accepted} | dict.fromkeys(named & {"batch_first"}, True)
        self.module = factory(**arguments)
        self.embed_dim = getattr(self.module, "embed_dim", embed_dim)
        self.batch_first = getattr(self.module, "batch_first", True)

    @classmethod
    def bound(cls, pattern: Pattern, options: Mapping[str, Any]) -> tuple[type[Self], dict[str, Any]]:
        """Return the class with the declarations of the module that is built for a pattern and options."""
        sizes = {name: value for name, value in options.items() if name in ARGUMENTS}
        own = {name: value for name, value in options.items() if name not in ARGUMENTS}
        _check_options(cls.__name__, options, arguments_of(cls.factory))
        factory = functools.partial(cls.factory, **own)
        if missing := required(factory):
            raise UserError(
                f"{cls.__name__} requires the arguments {', '.join(missing)}: set them, such as {missing[0]}=VALUE, or "
                f"verify a function in a file that accepts some of {', '.join(ARGUMENTS)} and returns the module"
            )
        named = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        chosen: type[Self] = type(cls.__name__, (cls,), named | {"factory": staticmethod(factory)})
        try:
            with torch.random.fork_rng(devices=[]):
                module = chosen(**{"pattern": pattern, **sizes}).module
        except Exception as error:
            given = " ".join(f"{name}={value}" for name, value in options.items())
            place = " ".join(filter(None, (f"for pattern {pattern}", given and f"with {given}")))
            raise UserError(f"cannot build {cls.__name__} {place}: {type(error).__name__}: {error}") from error
        if not isinstance(module, nn.Module):
            raise UserError(f"{cls.__name__} returns {type(module).__name__}, not a torch.nn.Module")
        chosen.padding_layouts = LAYOUTS if takes_masks(module.forward) else ()
        for name in (name for name in DECLARATIONS if hasattr(module, name)):
            setattr(chosen, name, getattr(module, name))
        for name in (name for name in DECODING if hasattr(module, name)):
            setattr(chosen, name, _delegated(name))
        return chosen, sizes

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, **masks: Tensor) -> Tensor:
        source = () if key is None else (key, value)
        names = arguments_of(self.module.forward)
        accepted = {name: mask for name, mask in masks.items() if name in names or "kwargs" in names}
        if "attn_mask" not in names or "query_padding_mask" in names:
            return self.module(query, *source, **accepted)
        if self.pattern is Pattern.CS:
            length = query.shape[1 if self.batch_first else 0]
            accepted["attn_mask"] = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        source = source or (query, query) if "key" in names else ()
        return self.module(query, *source, **accepted)


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


def _check_options(name: str, options: Mapping[str, Any], accepted: set[str]) -> None:
    for option in options.keys() - accepted if "kwargs" not in accepted else ():
        raise UserError(f"{name} has no option '{option}' (options: {', '.join(sorted(accepted - {'pattern'}))})")


def required(factory: Callable[..., nn.Module]) -> list[str]:
    """Return the arguments without a default that :class:`WrappedModule` does not fill."""
    return [
        name
        for name, p in inspect.signature(factory).parameters.items()
        if p.default is p.empty
        and (
            p.kind is p.POSITIONAL_ONLY
            or (p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and name not in ARGUMENTS)
        )
    ]


def _delegated(name: str) -> Callable[..., Any]:
    """Return a method that calls the wrapped module's method ``name``."""

    def call(self: WrappedModule, *arguments: Any, **options: Any) -> Any:
        return getattr(self.module, name)(*arguments, **options)

    return call
