"""Activation checkpointing of a part of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def recompute(function: Callable[..., Any], *arguments: Any, draws: bool = False) -> Any:
    """Return ``function(*arguments)`` and compute its activations again in the backward pass instead of storing them.

    Args:
        function: differentiable by autograd.
        arguments: its positional arguments.
        draws: whether the function draws random numbers, which the second computation has to repeat.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=draws)
