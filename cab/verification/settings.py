"""State of the process that a module must leave alone: settings of torch and random number generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch.get_default_dtype()": (torch.get_default_dtype, torch.set_default_dtype),
    "torch.get_float32_matmul_precision()": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch.are_deterministic_algorithms_enabled()": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "torch.is_grad_enabled()": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch.get_num_threads()": (torch.get_num_threads, torch.set_num_threads),
    "torch.backends.cuda.flash_sdp_enabled()": (
        torch.backends.cuda.flash_sdp_enabled,
        torch.backends.cuda.enable_flash_sdp,
    ),
}
"""Functions that return and change each setting."""


def read_settings() -> dict[str, Any]:
    """Return the current value of each setting."""
    return {name: get() for name, (get, _) in SETTINGS.items()}


def changes_since(before: Mapping[str, Any]) -> list[str]:
    """Return the settings that have changed, such as ``torch.get_default_dtype() from torch.float32 to ...``."""
    now = read_settings()
    return [f"{name} from {value!r} to {now[name]!r}" for name, value in before.items() if now[name] != value]


@contextmanager
def restored() -> Iterator[None]:
    """Restore all settings and random number generators after the block."""
    before, numbers, state = read_settings(), np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(state)
        np.random.set_state(numbers)
        for name, value in before.items():
            get, change = SETTINGS[name]
            if get() != value:
                change(value)
