"""State outside the state_dict: settings of torch, random number generators, attributes and caches of a class."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")


def _environment(value: Mapping[str, str]) -> None:
    for name in os.environ.keys() - value.keys():
        del os.environ[name]
    os.environ.update(value)


def _functions(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the functions of a namespace."""
    return {name: x for name, x in value.items() if callable(x) and not name.startswith("_")}


def _restore_functions(module: Any, value: Mapping[str, Any]) -> None:
    """Restore functions of a module; those that it has imported since, when they were first used, are left."""
    vars(module).update(_functions(value))


def _flushes_denormals() -> bool:
    return sys.float_info.min / 2.0 == 0.0


def _filters(value: tuple[Any, ...]) -> None:
    warnings.filters[:] = value  # type: ignore[index]


def _clear_hooks(_value: object) -> None:
    for name in GLOBAL_HOOKS:
        getattr(nn.modules.module, name).clear()


Settings = Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]]

SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    f"{get.__module__}.{get.__name__}()": (get, change)
    for get, change in (
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    )
}
"""Functions that return and change each setting."""

PROCESS = SETTINGS | {
    "torch.get_default_device()": (torch.get_default_device, torch.set_default_device),
    "torch.is_autocast_enabled('cpu')": (
        partial(torch.is_autocast_enabled, "cpu"),
        partial(torch.set_autocast_enabled, "cpu"),
    ),
    "flushing of denormal numbers": (_flushes_denormals, torch.set_flush_denormal),
    "gc.isenabled()": (gc.isenabled, lambda value: gc.enable() if value else gc.disable()),
    "sys.getrecursionlimit()": (sys.getrecursionlimit, sys.setrecursionlimit),
    "torch.is_anomaly_enabled()": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "numpy.geterr()": (lambda: tuple(np.geterr().items()), lambda value: np.seterr(**dict(value))),
    "os.getcwd()": (os.getcwd, os.chdir),
    "os.environ": (lambda: dict(os.environ), _environment),
    "warnings.filters": (lambda: tuple(warnings.filters), _filters),
    "torch": (vars(torch).copy, partial(_restore_functions, torch)),
    "torch.nn.functional": (vars(F).copy, partial(_restore_functions, F)),
    "global hooks": (lambda: {name: len(getattr(nn.modules.module, name)) for name in GLOBAL_HOOKS}, _clear_hooks),
}
"""The same for everything that no call may change. Of a dictionary, changed entries are named."""

UNUSUAL: dict[str, Any] = {
    "torch.is_autocast_enabled('cpu')": True,
    "torch.get_float32_matmul_precision()": "high",
    "torch.is_autocast_cache_enabled()": False,
    "torch.backends.cuda.flash_sdp_enabled()": False,
    "flushing of denormal numbers": True,
    "gc.isenabled()": False,
    "numpy.geterr()": (("all", "ignore"),),
}
"""Values that a call changes if it sets the usual ones."""

DEPTH = 4
"""Levels of containers and objects that are searched for values that change."""


def read_settings(settings: Settings = PROCESS) -> dict[str, Any]:
    """Return the current value of each setting."""
    return {name: get() for name, (get, _) in settings.items()}


def changes_since(before: Mapping[str, Any]) -> list[str]:
    """Return the settings that have changed, such as ``torch.get_default_dtype() from torch.float32 to ...``."""
    now = {name: PROCESS[name][0]() for name in before}
    changes = []
    for name, value in before.items():
        if now[name] == value:
            continue
        if isinstance(value, dict):
            names = _functions(value).keys() if name.startswith("torch") else value.keys() | now[name].keys()
            changes += [f"{name}.{x}" for x in sorted(names) if now[name].get(x) != value.get(x)]
        else:
            changes.append(name if isinstance(value, tuple) else f"{name} from {value!r} to {now[name]!r}")
    return changes


@contextmanager
def restored(settings: Settings = PROCESS) -> Iterator[None]:
    """Restore all settings and random number generators after the block."""
    before, numbers, state = read_settings(settings), np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(state)
        np.random.set_state(numbers)
        for name, value in before.items():
            get, change = settings[name]
            if get() != value:
                change(value)


@contextmanager
def with_setting(change: Callable[[Any], Any], value: Any) -> Iterator[None]:
    """Change a setting of torch within the block."""
    with restored():
        change(value)
        yield


@contextmanager
def filled_memory() -> Iterator[None]:
    """Fill new memory with NaN, or with the largest integer."""
    with restored(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # As torch.use_deterministic_algorithms(True, warn_only=True), which imports the compiler first.
        torch._C._set_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch._C._set_deterministic_algorithms(False)


def generators() -> dict[str, object]:
    """Return the states of the random number generators of the process."""
    numbers = np.random.get_state(legacy=True)
    return {
        "torch": bytes(torch.get_rng_state().numpy()),
        "numpy": (numbers[1].tobytes(), numbers[2]),  # type: ignore[index]
        "random": random.getstate(),
    }


def clear_tensor_caches(cls: type[nn.Module]) -> list[str]:
    """Clear the tensor caches of a class and its module, which can be rebuilt, and return their names."""
    cleared = []
    for owner in (*user_classes(cls), *{sys.modules[c.__module__] for c in user_classes(cls)}):
        for name, value in list(vars(owner).items()):
            items = value.values() if isinstance(value, dict) else value
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()
            elif isinstance(value, dict | list | set) and any(isinstance(x, Tensor) for x in items):
                value.clear()
                cleared.append(name)
            elif isinstance(value, Tensor) and isinstance(owner, type):
                setattr(owner, name, None)
                cleared.append(name)
    return cleared


def user_classes(cls: type[nn.Module]) -> list[type]:
    """Return the class and its bases outside torch and this package."""
    return [c for c in cls.__mro__ if c.__module__.partition(".")[0] not in ("torch", "builtins", "cab", "typing")]


def values_of(module: nn.Module) -> dict[str, object]:
    """Return the values, by place, of attributes outside the state_dict: of the module, its classes and their files."""
    saved = {id(x) for x in module.state_dict(keep_vars=True).values()}
    values: dict[str, object] = {}
    for path, submodule in module.named_modules():
        _collect(vars(submodule), path or type(submodule).__name__, saved, DEPTH, values)
    for cls in user_classes(type(module)):
        _collect(dict(vars(cls)), f"class {cls.__name__}", saved, DEPTH, values)
        _collect(vars(sys.modules[cls.__module__]), cls.__module__, saved, 2, values)
    return values


def _collect(value: object, path: str, saved: set[int], depth: int, values: dict[str, object]) -> None:
    """Add the values in ``value`` to ``values``, down to ``depth`` levels; modules and saved tensors are left out."""
    if id(value) in saved or isinstance(value, nn.Module | type):
        return
    if isinstance(value, Tensor):
        total = value.detach().double().sum().item() if value.dtype.is_floating_point else 0
        values[path] = (tuple(value.shape), total)
    elif isinstance(value, bool | int | float | str | itertools.count):
        values[path] = repr(value)
    elif isinstance(value, dict | list | tuple | set | deque):
        values[path] = len(value)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in list(items) if depth else ():
            _collect(item, f"{path}.{name}", saved, depth - 1, values)
    elif depth and type(value).__module__ not in ("builtins", "torch") and hasattr(value, "__dict__"):
        _collect(vars(value), path, saved, depth - 1, values)
