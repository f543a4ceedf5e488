"""Numbers of public code, run once in float64: inputs, weights, outputs and gradients, in ``public_code/``.

A file holds ``weight_NAME`` for a parameter NAME of our module, the inputs, ``output``, a ``direction`` by which the
output was multiplied and summed, and ``grad_INPUT`` of that sum.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cab import Attention

OUTPUT, GRADIENT = 1e-5, 1e-4
"""Largest differences, in parts of the largest number."""


def vectors(name: str) -> dict[str, Tensor]:
    """In float64."""
    with np.load(Path(__file__).parent / "public_code" / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]).double() for key in file.files}


def with_weights(module: Attention, data: dict[str, Tensor]) -> Attention:
    """The module in float64 with those weights; a bias that has none is zero, ``out_proj`` the identity."""
    module = module.double().eval()
    own = module.state_dict()
    for name, parameter in own.items():
        if f"weight_{name}" in data:
            own[name] = data[f"weight_{name}"].view_as(parameter)
        elif name.endswith("bias"):
            own[name] = torch.zeros_like(parameter)
        elif name == "out_proj.weight":
            own[name] = torch.eye(len(parameter), dtype=parameter.dtype)
    assert set(own) >= {name.removeprefix("weight_") for name in data if name.startswith("weight_")}
    module.load_state_dict(own)
    return module


def assert_gives(module: Attention, data: dict[str, Tensor], query: str, source: str | None = None) -> None:
    """Output and gradients of the inputs, by their names in ``data``, are those of the public code."""
    names = [query] if source is None else [query, source]
    inputs = [data[name].clone().requires_grad_() for name in names]
    output = module(*inputs, *inputs[1:])
    gradients = torch.autograd.grad((output * data["direction"]).sum(), inputs)
    assert distance(output, data["output"]) < OUTPUT
    for name, gradient in zip(names, gradients, strict=True):
        assert distance(gradient, data[f"grad_{name}"]) < GRADIENT


def distance(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()
