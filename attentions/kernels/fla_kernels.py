"""The recurrences computed by the Triton kernels of flash-linear-attention, if it is installed (extra `cuda`).

They multiply numbers of bfloat16 with each other and keep sums, decays and states in float32; numbers of float32 they
multiply as TF32, or refuse. So a layer in bfloat16 takes them, and every other one our own forms. They tune themselves
at their first call of a shape, by the clock: they are not taken where torch is told to be deterministic.

Functions and shapes are those of `recurrence`, `delta_rule` and `generalized_delta_rule`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.profiler import record_function

Form = Callable[..., tuple[Tensor, Tensor]]
"""From the terms of tokens and the state before the first to outputs and the state after the last."""

LABEL = "kernels of flash-linear-attention"
"""Profiler region around its kernels; `cab efficiency` names what follows "kernels of ", and counts no operations."""
HAS_FLA = find_spec("fla") is not None

FACTORS = torch.bfloat16
"""The type of what is multiplied."""

SHORTEST = 64
"""Tokens of one of their blocks; fewer are ours."""

WIDTHS = range(16, 257)
"""Of keys and values: a matrix product of Triton has 16 numbers or more, a state that is corrected at most 256 rows."""

FORGOTTEN = -100.0
"""A log decay whose exp is zero in float32, and beside which sums of a block in float32 keep their digits."""


def can_use_kernels(value: Tensor, state: Tensor, inputs: torch.dtype) -> bool:
    """Return whether kernels exist for values [B, H, N, V] and a state [B, H, K, V] with heads of type ``inputs``."""
    return (
        HAS_FLA
        and value.is_cuda
        and inputs is FACTORS
        and value.shape[2] >= SHORTEST
        and all(width in WIDTHS for width in state.shape[2:])
        and not torch.compiler.is_compiling()  # they would break the graph
        and not torch.are_deterministic_algorithms_enabled()
    )


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


def _call(path: str, factors: dict[str, Tensor], decays: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """Call the function in ``path`` with tensors [B or 1, H or 1, N, ...] by the names of its arguments."""
    module, _, name = path.rpartition(".")
    function = getattr(import_module(f"fla.ops.{module}"), name)
    shape = factors["v"].shape[:3]
    inputs = {name: x.to(FACTORS) for name, x in factors.items()}
    inputs |= {name: x.clamp(min=FORGOTTEN) for name, x in decays.items()}
    inputs = {name: x.expand(*shape, *x.shape[3:]).transpose(1, 2) for name, x in inputs.items()}
    with record_function(LABEL):
        output, state = function(**inputs, scale=1.0, initial_state=state, output_final_state=True)
    return output.transpose(1, 2).to(state.dtype), state
