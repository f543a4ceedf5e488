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

import yaml
from torch import nn

from cab.errors import UserError
from cab.patterns import Pattern
from cab.registry.files import load_object
from cab.registry.names import is_file
from cab.verification.foreign.adapters import (
    ARGUMENTS,
    CAUSAL,
    ForeignModule,
    FunctionAttention,
    HuggingFaceFunction,
    WrappedModule,
    declarations_of,
)
from cab.verification.foreign.hugging_face import model_class

__all__ = ["ForeignModule", "adapter_of", "parse_options", "subject_class"]

QUERIES = ("q", "query", "queries")
"""Names of the first argument of an attention function."""

distributions = functools.cache(packages_distributions)


@functools.cache
def subject_class(name: str) -> type[nn.Module]:
    """Return the class to verify for a name with a colon.

    * ``hf:TYPE`` or ``hf:TYPE:option=value,...``: a Hugging Face model.
    * ``FILE.py:Class``: the class itself.
    * ``FILE.py:function`` or ``package.module:name``: an attention function or a factory of modules.

    Raises:
        UserError: a file, package or name does not exist, or an option is invalid.
    """
    if name.startswith("hf:"):
        model_type, _, options = name.removeprefix("hf:").partition(":")
        return model_class(model_type, parse_options(filter(None, options.split(","))))
    target = load_object(name) if is_file(name) else _imported(name)
    if is_file(name) and isinstance(target, type) and issubclass(target, nn.Module):
        return target
    if not callable(target):
        raise UserError(f"{name} is neither a class, an attention function nor a factory of modules")
    return adapter_of(target, name)


def adapter_of(function: Callable[..., Any], name: str) -> type[ForeignModule]:
    """Return the adapter class of an attention function or of a factory, chosen by the arguments.

    ``f(module, query, key, value, attention_mask, ...)`` is an attention function of Hugging Face,
    ``f(query, key, value, ...)`` a plain one. Any other callable is a factory that accepts some of ``pattern``,
    ``embed_dim``, ``num_heads`` and ``dropout`` and returns a module.
    """
    names = list(inspect.signature(function).parameters)
    base: type[ForeignModule]
    attributes: dict[str, Any] = {"function": staticmethod(function)}
    if names[:1] == ["module"] and "attention_mask" in names:
        base = HuggingFaceFunction
    elif names and names[0] in QUERIES:
        base = FunctionAttention
        if not any(argument in names for argument in CAUSAL):
            attributes["patterns"] = (Pattern.NS, Pattern.NC)
    else:
        _check_factory(name, function)
        try:
            base, attributes = WrappedModule, {"factory": staticmethod(function), **declarations_of(function)}
        except Exception as error:
            raise UserError(f"cannot build {name}: {type(error).__name__}: {error}") from error
    # The hash of the code covers a file; code of a package is identified by the version of the package.
    package = next(iter(distributions().get(function.__module__.partition(".")[0], [])), "")
    module, path = function.__module__, function.__qualname__
    module, path = (base.__module__, f"{module}.{path}") if package else (module, path)
    attributes |= {"package": package, "__module__": module, "__qualname__": path}
    return type(name.rpartition(":")[2], (base,), attributes)


def _check_factory(name: str, function: Callable[..., Any]) -> None:
    required = [
        argument
        for argument, p in inspect.signature(function).parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and argument not in ARGUMENTS
    ]
    if required:
        raise UserError(
            f"{name} requires the arguments {', '.join(required)}, which are unknown; verify a function in a file that "
            f"accepts some of {', '.join(ARGUMENTS)} and returns the module"
        )


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        hint = f"write {module}.py:{attribute}" if Path(f"{module}.py").is_file() else "install the package"
        raise UserError(f"cannot import '{module}' of {name}: {error}; {hint}") from error
    except AttributeError as error:
        raise UserError(f"module '{module}' has no '{attribute}'") from error


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """Return the options of ``name=value`` pairs, whose values are YAML."""
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"option '{name}' has no value; write it as name=value")
        options[name] = yaml.safe_load(value)
    return options
