"""What the class of an attention claims about its method, for `cab verify`; nothing else reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NUM_TOKENS = "the number of tokens"
"""The value of an option in a :class:`SoftmaxLimit` that is to be as large as the sequence is long."""


@dataclass(frozen=True)
class SoftmaxLimit:
    """Sets of options that approach softmax attention, the last within ``tolerance`` (relative error, RMS)."""

    options: tuple[Mapping[str, Any], ...]
    tolerance: float = 1e-5


def softmax_if(**options: Any) -> SoftmaxLimit:
    """Return the claim that the method equals softmax attention with these options."""
    return SoftmaxLimit((options,))


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Intended deviations of a method from what `cab verify` expects, and its limit.

    Attributes:
        has_exact_gradient: gradients are derivatives of the outputs; False for a method that was published with
            gradients cut off. The two are then not compared.
        uses_key: False for a method whose weights depend on targets and positions alone, so that in cross patterns
            the output depends on ``value`` and not on ``key``.
        max_self_contribution: how much of an output's change may come from its own token at initialization.
        softmax_limit: options with which it equals softmax attention, or approaches it.
        parameter_budget: parameters it may add to a backbone, as a fraction of it (CAB's rule: a tenth).
        noncausal_rounding: why the rounding of an output depends on later tokens, in a method whose outputs do not
            depend on them otherwise. :class:`cab.Replay` is then exact up to rounding only.
        absorbed: submodules whose weight decoding multiplies into another map, so that it never calls them.
        float32_devices: devices on which it works in float32, the dtype of the checks.
    """

    has_exact_gradient: bool = True
    uses_key: bool = True
    max_self_contribution: float = 0.93
    softmax_limit: SoftmaxLimit | None = None
    parameter_budget: float = 0.1
    noncausal_rounding: str = ""
    absorbed: tuple[str, ...] = ()
    float32_devices: tuple[str, ...] = ("cpu", "cuda")
