"""The recurrences computed by the Triton kernels of flash-linear-attention, if it is installed (extra `cuda`).

They multiply numbers of bfloat16 with each other and keep sums, decays and states in float32; numbers of float32 they
multiply as TF32, or refuse. They break the graph of a compiled model. They tune themselves at their first call of a
shape, by the clock, so two processes may round differently.

Functions and shapes are those of `recurrence`, `delta_rule` and `generalized_delta_rule`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from cab.kernels import Backend

LABEL = "kernels of flash-linear-attention"
"""Profiler region around its kernels; `cab efficiency` names what follows "kernels of ", and counts no operations."""

FACTORS = torch.bfloat16
"""The type of what is multiplied."""

SHORTEST = 64
"""Tokens of one of their blocks; fewer are faster in PyTorch."""

WIDTHS = range(16, 257)
"""Of keys and values: a matrix product of Triton has 16 numbers or more, a state that is corrected at most 256 rows."""

FORGOTTEN = -100.0
"""A log decay whose exp is zero in float32, and beside which sums of a block in float32 keep their digits."""


def backend(run: Callable[..., tuple[Tensor, Tensor]]) -> Backend:
    """Return the backend of one of the functions below, whose last argument is the state."""
    limits: dict[str, Any] = {"dtypes": (FACTORS,), "compiles": False, "is_deterministic": False}
    return Backend("fla", run, package="fla", refuses=_refuses, declines=_declines, **limits)


def _refuses(*terms: Tensor) -> str | None:
    rows, columns = terms[-1].shape[2:]
    if rows in WIDTHS and columns in WIDTHS:
        return None
    return f"keys and values of {rows} and {columns} features, not {WIDTHS.start} to {WIDTHS.stop - 1}"


def _declines(*terms: Tensor) -> str | None:
    return f"fewer than {SHORTEST} tokens" if terms[0].shape[2] < SHORTEST else None


def recurrence(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a gated linear recurrence with the flash-linear-attention kernel."""
    factors = {"q": query, "k": key, "v": value}
    if log_decay is None:
        return _call("simple_gla.chunk_simple_gla", factors, {}, state)
    name = "simple_gla.chunk_simple_gla" if log_decay.dim() == 3 else "gla.chunk_gla"
    return _call(name, factors, {"g": log_decay}, state)


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, log_decay: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a (gated) delta rule with the flash-linear-attention kernel."""
    factors = {"q": query, "k": key, "v": value, "beta": strength}
    if log_decay is None:
        return _call("delta_rule.chunk_delta_rule", factors, {}, state)
    return _call("gated_delta_rule.chunk_gated_delta_rule", factors, {"g": log_decay}, state)


def generalized_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, removal: Tensor, erasure: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the generalized delta rule with the flash-linear-attention kernel, which adds a (b S): a = -r."""
    factors = {"q": query, "k": key, "v": value, "a": -removal, "b": erasure}
    return _call("generalized_delta_rule.dplr.chunk_dplr_delta_rule", factors, {"gk": log_decay}, state)


def kda(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the delta rule with decays per feature with the flash-linear-attention kernel."""
    factors = {"q": query, "k": key, "v": value, "beta": strength.squeeze(-1)}
    return _call("kda.chunk_kda", factors, {"g": log_decay}, state)


def gated_delta_rule_2(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute that with strengths per feature; the kernel has gates of values, too, which are one."""
    factors = {"q": query, "k": key, "v": value, "b": strength, "w": torch.ones_like(value)}
    return _call("gdn2.chunk_gdn2", factors, {"g": log_decay}, state)


def comba(
    query: Tensor, key: Tensor, value: Tensor, removal: Tensor, strength: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a gated delta rule that reads the state by another key than it writes."""
    factors = {"q": query, "k": key, "v": value, "p": removal, "beta": strength}
    return _call("comba.chunk_comba", factors, {"g": log_decay}, state)


def delta_product(
    query: Tensor, key: Tensor, value: Tensor, strength: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a gated delta rule with several keys per token."""
    factors = {"q": query, "k": key, "v": value, "beta": strength}
    steps = key.shape[2] // query.shape[2]
    name = "gated_delta_product.chunk_gated_delta_product"
    return _call(name, factors, {"g": log_decay}, state, num_householder=steps)


def _call(
    path: str, factors: dict[str, Tensor], decays: dict[str, Tensor], state: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    """Call the function in ``path`` with tensors [B or 1, H or 1, N, ...] by the names of its arguments."""
    module, _, name = path.rpartition(".")
    function = getattr(import_module(f"fla.ops.{module}"), name)
    rows = factors["v"].shape[:2]
    inputs = {name: x.to(FACTORS) for name, x in factors.items()}
    inputs |= {name: x.clamp(min=FORGOTTEN) for name, x in decays.items()}
    inputs = {name: x.expand(*rows, *x.shape[2:]).transpose(1, 2) for name, x in inputs.items()}
    with record_function(LABEL):
        output, state = function(**inputs, scale=1.0, initial_state=state, output_final_state=True, **options)
    return output.transpose(1, 2).to(state.dtype), state
