"""Compare the backends of all operations with their references in float64; exit status 1 if one is less exact.

python -m tools.verification.kernels [--dtype bfloat16] [--width 64 128] [--only OPERATION ...]

Outputs, states and all gradients are compared, with an initial state and padding, and outputs and states in two pieces.
An error may be a small multiple of that of the reference itself, whose products are rounded in the same way.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import attentions.kernels.delta_rule
import attentions.kernels.recurrence  # noqa: F401
from cab.kernels import Backend, Operation, operations

Inputs = tuple[Tensor | None, ...]
Form = Callable[..., tuple[Tensor, ...]]

MARGIN = 4.0
"""Factor on the reference's error: a kernel rounds its intermediate results, too."""
LENGTHS = (131, 1030)
HEADS, PADDED = 1, 20
"""Heads of two sequences, and tokens of padding at the end of the second sequence."""
BLOCK = 32
"""Tokens per block of the recurrences over blocks."""


# --- inputs by operation, in float64 ---------------------------------------------------------------------------------


def recurrence_inputs(name: str, length: int, width: int) -> Iterator[tuple[str, Inputs]]:
    """Draw the arguments of an operation over tokens, from decays that leave nearly all to some that leave nothing."""
    steps = 3 if name == "delta_product" else 1
    size = (2, HEADS, length * steps, width)
    real = torch.ones(2, 1, length * steps, dtype=torch.float64)
    real[1, :, (length - PADDED) * steps :] = 0.0

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64)

    query, value = draw(2, HEADS, length, width) * width**-0.5, draw(*size)
    key, removal = (F.normalize(draw(*size), dim=-1) * real.unsqueeze(-1) for _ in range(2))
    strength, per_head = draw(*size[:3]).sigmoid(), -draw(*size[:3])[:, :, ::steps].mul(2).exp() * real[:, :, ::steps]
    per_feature = -draw(*size).mul(2).exp() * real.unsqueeze(-1)
    rate, bounded = draw(*size).sigmoid(), per_feature.clamp(min=-0.6)  # so that float16 holds quotients of decays
    state = draw(2, HEADS, width, width)
    cases: dict[str, dict[str, Inputs]] = {
        "recurrence": {"": (None,), " per head": (per_head,), " per feature": (per_feature,)},
        "delta_rule": {"": (strength, None), " per head": (strength, per_head)},
        "delta_product": {" per head": (strength, per_head)},
        "generalized_delta_rule": {" per feature": (removal, removal * rate, bounded)},
        "rwkv7": {" per feature": (removal, removal * rate, bounded)},
        "kda": {" per feature": (strength.unsqueeze(-1), bounded)},
        "gated_delta_rule_2": {" per feature": (rate, bounded)},
        "comba": {" per head": (key * 0.5, strength, per_head.clamp(min=-0.6))},
    }
    for decay, rest in cases.get(name, {}).items():
        yield decay, (query, key, value, *rest, state)


def block_inputs(name: str, length: int, width: int) -> Iterator[tuple[str, Inputs]]:
    """Draw the arguments of an operation over blocks."""
    count, scale = -(-length // BLOCK), width**-0.5

    def draw(*shape: int) -> Tensor:
        return torch.randn(2, HEADS, *shape, dtype=torch.float64)

    rows = [draw(count, BLOCK, width) * scale for _ in range(3)]
    removals = [draw(count, BLOCK, width), *rows[:2], torch.cat(rows[1:], dim=-2).mT]
    cases: dict[str, list[Tensor]] = {
        "block_recurrence": [draw(count, width, width)],
        "block_states": [draw(count, width, width)],
        "delta_states": rows,
        "generalized_delta_states": removals,
    }
    factors = {"": None, " per head": draw(count, 1, 1).sigmoid(), " per feature": draw(count, width, 1).sigmoid()}
    for decay, factor in factors.items() if name in cases else ():
        if decay or name in ("block_recurrence", "delta_states"):
            yield decay, (draw(width, width) * scale, *cases[name], factor)


# --- comparison ------------------------------------------------------------------------------------------------------


class RoundedProducts(TorchFunctionMode):
    """Rounds the factors of matrix products; the products and sums keep their type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.matmul, Tensor.__matmul__, torch.matmul):
            args = [x.to(self.dtype).to(x.dtype) for x in args]
        return func(*args, **(kwargs or {}))


def results(
    form: Form, inputs: Inputs, dtype: torch.dtype, device: str, weights: list[Tensor] | None = None
) -> dict[str, Tensor]:
    """Return the outputs, and with ``weights`` the gradients of their sum; an empty list is filled with random ones."""
    leaves = [None if x is None else x.detach().to(device, dtype).requires_grad_(weights is not None) for x in inputs]
    found = form(*leaves)
    outputs = [found] if isinstance(found, Tensor) else list(found)
    named = {f"output {number}": x.detach() for number, x in enumerate(outputs)}
    if weights is None:
        return named
    weights += [torch.randn(x.shape, dtype=torch.float64) for x in outputs[len(weights) :]]
    loss = sum((x.double() * weight.to(device)).sum() for x, weight in zip(outputs, weights, strict=True))
    gradients = torch.autograd.grad(loss, [x for x in leaves if x is not None])  # type: ignore[arg-type]
    return named | {f"gradient {number}": x for number, x in enumerate(gradients)}


def in_two_pieces(form: Form, length: int) -> Form:
    """Return a form over tokens that computes the rest of the sequence from the state after its first part."""

    def pieces(*inputs: Tensor | None) -> tuple[Tensor, ...]:
        outputs, state, border = [], inputs[-1], length // 2 + 3
        for begin, end in ((0, border), (border, length)):
            part = [x if x is None else x[:, :, begin * n : end * n] for x in inputs[:-1] for n in [_steps(x, length)]]
            output, state = form(*part, state)
            outputs.append(output)
        assert state is not None
        return torch.cat(outputs, dim=2), state

    return pieces


def _steps(x: Tensor | None, length: int) -> int:
    return 1 if x is None else x.shape[2] // length


@dataclass(frozen=True)
class Agreement:
    """The largest error of a backend relative to its limit."""

    operation: str
    backend: str
    error: float
    limit: float
    where: str

    @property
    def passed(self) -> bool:
        return self.error <= self.limit

    def __str__(self) -> str:
        sign = "<=" if self.passed else "> "
        return f"{self.operation:<26}{self.backend:<8}error {self.error:.1e} {sign} {self.limit:.1e} at {self.where}"


def check_backend(
    operation: Operation[..., Any],
    backend: Backend,
    device: str,
    dtype: torch.dtype,
    width: int,
    lengths: Sequence[int] = LENGTHS,
) -> Agreement | None:
    """Compare a backend on ``device`` with the reference in float64, which runs on a CPU.

    Args:
        operation: the operation.
        backend: one of its backends.
        device: type of the device.
        dtype: type to which the backend rounds the factors of its products.
        width: features of a key and of a value.
        lengths: numbers of tokens.

    Returns:
        The worst measurement; None for an operation without inputs here.
    """
    worst: list[Agreement] = []
    for length in lengths:
        torch.manual_seed(length)
        drawn = [(case, True) for case in recurrence_inputs(operation.name, length, width)]
        drawn += [(case, False) for case in block_inputs(operation.name, length, width)]
        for (decay, inputs), has_tokens in drawn:
            weights = list[Tensor]()
            exact = results(operation.reference, inputs, torch.float64, "cpu", weights)
            with RoundedProducts(dtype):
                own = results(operation.reference, inputs, torch.float32, "cpu", weights)
            found = [("", results(backend.run, inputs, torch.float32, device, weights))]
            if has_tokens:
                pieces = in_two_pieces(backend.run, length)
                found += [(" in pieces", results(pieces, inputs, torch.float32, device))]
            for how, tensors in found:
                for name, x in tensors.items():
                    scale = float(exact[name].norm())
                    error, limit = (float((y.cpu() - exact[name]).norm()) / scale for y in (x, own[name]))
                    limit = MARGIN * max(limit, torch.finfo(torch.float32).eps)
                    where = f"{name}{decay}{how}, {width} features, {length} tokens"
                    worst.append(Agreement(operation.name, backend.name, error, limit, where))
    return max(
        worst, key=lambda found: math.inf if math.isnan(found.error) else found.error / found.limit, default=None
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--width", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--only", nargs="+", metavar="OPERATION")
    args = parser.parse_args()
    dtype, passed = getattr(torch, args.dtype), True
    for operation in operations():
        for backend in operation.backends if not args.only or operation.name in args.only else ():
            if not backend.is_installed or dtype not in backend.dtypes:
                continue
            for width in args.width:
                found = check_backend(operation, backend, backend.device, dtype, width)
                if found is not None:
                    print(found, flush=True)
                    passed = passed and found.passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
