"""Adapters: modules of other packages as subjects of the conformance suite.

Whole models of Hugging Face are in :mod:`hugging_face`, functions on heads and modules built by a factory in
:mod:`adapters`. :func:`subject_class` resolves the names that `cab verify` accepts.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from torch import nn

from cab.attention import Attention
from cab.errors import UserError
from cab.patterns import Pattern
from cab.registry.files import load_object
from cab.registry.names import is_file
from cab.verification.foreign.adapters import (
    CAUSAL,
    ForeignModule,
    FunctionAttention,
    HuggingFaceFunction,
    WrappedModule,
)
from cab.verification.inputs import MASKS, arguments_of

__all__ = ["ForeignModule", "adapter_of", "parse_options", "subject_class"]

QUERIES = ("q", "query", "queries")
"""Names of the first argument of an attention function."""

distributions = functools.cache(packages_distributions)


@functools.cache
def subject_class(name: str) -> type[nn.Module]:
    """Return the class to verify for a name with a colon.

    * ``hf:TYPE`` or ``hf:TYPE:option=value,...``: a Hugging Face model.
    * A subclass of :class:`cab.Attention`, and a class in a file that is called as one: the class itself.
    * Another class, an attention function or a factory of modules, in a file or a package: its adapter.

    Raises:
        UserError: a file, package or name does not exist, or an option is invalid.
    """
    if name.startswith("hf:"):
        if not name.split(":")[1]:
            raise UserError(f"'{name}' has no model type; write hf:TYPE, such as hf:mamba2")
        from cab.verification.foreign.hugging_face import model_class  # imports yaml

        model_type, _, options = name.removeprefix("hf:").partition(":")
        return model_class(model_type, parse_options(filter(None, options.split(","))))
    target = load_object(name) if is_file(name) else _imported(name)
    if isinstance(target, nn.Module) or not callable(target):
        kind = f"an object of {type(target).__name__}"
        raise UserError(f"{name} is {kind}; name a class, an attention function or a factory of modules")
    return adapter_of(target, name, is_in_file=is_file(name))


def adapter_of(function: Callable[..., Any], name: str, *, is_in_file: bool = True) -> type[nn.Module]:
    """Return the class to verify for a class, an attention function or a factory, chosen by its signature.

    A subclass of :class:`cab.Attention` is returned itself, and so is a class in a file whose ``forward`` accepts the
    masks of this project or no masks. ``f(module, query, key, value, attention_mask, ...)`` is an
    attention function of Hugging Face, ``f(query, key, value, ...)`` a plain one. Any other callable is a factory that
    accepts some of ``pattern``, ``embed_dim``, ``num_heads`` and ``dropout`` and returns a module.
    """
    if isinstance(function, type) and issubclass(function, nn.Module):
        masks = arguments_of(function.forward) & {*MASKS, "attn_mask"}
        if issubclass(function, Attention) or (is_in_file and masks in (set(), {*MASKS})):
            return function
    names = list(inspect.signature(function).parameters) if arguments_of(function) else []
    base: type[ForeignModule]
    attributes: dict[str, Any] = {"function": staticmethod(function)}
    if names[:1] == ["module"] and "attention_mask" in names:
        base = HuggingFaceFunction
    elif names and names[0] in QUERIES:
        base = FunctionAttention
        if not any(argument in names for argument in CAUSAL):
            attributes["patterns"] = (Pattern.NS, Pattern.NC)
    else:
        base, attributes = WrappedModule, {"factory": staticmethod(function)}
    # The hash of the code covers a file; code of a package is identified by the version of the package.
    origin = getattr(function, "func", function)  # of a functools.partial
    origin = origin if hasattr(origin, "__qualname__") else type(origin)
    module, path = origin.__module__, origin.__qualname__
    package = next(iter(distributions().get(module.partition(".")[0], [])), "")
    module, path = (base.__module__, f"{module}.{path}") if package else (module, path)
    attributes |= {"package": package, "__module__": module, "__qualname__": path}
    return type(name.rpartition(":")[2], (base,), attributes)


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise UserError(f"'{name}' is not package.module:name; write, for example, torch.nn:Linear, or FILE.py:Class")
    file = Path(*module.split(".")).with_suffix(".py")
    of_file = f"; write {file}:{attribute}" if file.is_file() else ""
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        hint = of_file or "; install the package"
        raise UserError(f"cannot import '{module}' of {name}: {error}{hint}") from error
    except AttributeError as error:
        raise UserError(f"module '{module}' has no '{attribute}'{of_file}") from error


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """Return the options of ``name=value`` pairs, whose values are YAML."""
    import yaml  # which cab.verification itself does not need

    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"option '{name}' has no value; write it as name=value")
        options[name] = yaml.safe_load(value)
    return options
