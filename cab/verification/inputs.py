"""Inputs of an attention: targets, source and padding masks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

LAYOUTS = ("right", "left", "inside", "row")
"""Layouts of padding; see :func:`padding_masks`."""

Module = Any
"""A ``torch.nn.Module`` with the methods and attributes of the contract, which no torch type declares."""


@dataclass(frozen=True)
class Inputs:
    """Arguments of one call; ``key`` and ``value`` are None in self patterns, masks are None without padding."""

    query: Tensor
    key: Tensor | None = None
    value: Tensor | None = None
    query_padding: Tensor | None = None
    key_padding: Tensor | None = None

    def run(self, module: Module, *, seed: int | None = None) -> Tensor:
        """Call ``module`` and return its output [B, N, D].

        In self patterns the mask is passed under both names. With a ``seed``, torch's random number generator is seeded
        first.
        """
        if seed is not None:
            torch.manual_seed(seed)
        masks = {}
        if self.query_padding is not None:
            masks["query_padding_mask"] = self.query_padding
        key_padding = self.query_padding if self.key is None else self.key_padding
        if key_padding is not None:
            masks["key_padding_mask"] = key_padding
        if self.key is None:
            return module(self.query, **masks)
        return module(self.query, self.key, self.value, **masks)

    def tensors(self) -> dict[str, Tensor]:
        """Return the query and, if present, key and value by name."""
        named = {"query": self.query, "key": self.key, "value": self.value}
        return {name: x for name, x in named.items() if x is not None}

    def requiring_grad(self) -> Inputs:
        """Return copies of the inputs that accumulate gradients."""
        return replace(self, **{name: x.detach().clone().requires_grad_() for name, x in self.tensors().items()})

    def double(self) -> Inputs:
        """Return the inputs in float64."""
        return replace(self, **{name: x.double() for name, x in self.tensors().items()})

    def float(self) -> Inputs:
        """Return the inputs in float32."""
        return replace(self, **{name: x.float() for name, x in self.tensors().items()})

    def given(self) -> dict[str, Tensor]:
        """Return :meth:`tensors` and the masks that are present."""
        masks = {"query_padding": self.query_padding, "key_padding": self.key_padding}
        return self.tensors() | {name: mask for name, mask in masks.items() if mask is not None}

    def rows(self, index: Any) -> Inputs:
        """Return the rows ``index`` of every tensor."""
        return replace(self, **{name: x[index] for name, x in self.given().items()})

    def repeated(self, count: int) -> Inputs:
        """Return the inputs, of batch size one, repeated ``count`` times."""
        return replace(self, **{name: x.expand(count, -1, -1) for name, x in self.tensors().items()})

    def prefix(self, length: int) -> Inputs:
        """Return the first ``length`` targets with the whole source."""
        mask = self.query_padding
        return replace(self, query=self.query[:, :length], query_padding=None if mask is None else mask[:, :length])

    @property
    def real(self) -> Tensor:
        """Mask [B, N] of the targets that are not padding."""
        if self.query_padding is None:
            return self.query.new_ones(self.query.shape[:2], dtype=torch.bool)
        return ~self.query_padding


def padding_masks(layout: str, x: Tensor) -> Tensor:
    """Return a bool mask [B, N] for ``x`` [B, N, D], with a different number of padded positions per row.

    The first row has no padding. Layouts: ``left``, ``right``, ``inside`` (scattered, not at the ends of the row) and
    ``row`` (all of row 1).
    """
    batch, length = x.shape[:2]
    generator = torch.Generator().manual_seed(3)
    mask = torch.zeros(batch, length, dtype=torch.bool)
    for row, share in enumerate((0.0, 0.55, 0.2, 0.9, 0.4)[:batch]):
        count = min(length - 1, round(share * length))
        if layout == "right":
            mask[row, length - count :] = True
        elif layout == "left":
            mask[row, :count] = True
        elif layout == "inside":
            mask[row, (1 + torch.randperm(max(length - 2, 0), generator=generator))[:count]] = True
        else:
            mask[row] = row == 1
    return mask.to(x.device)


def with_padding(inputs: Inputs, layout: str) -> Inputs:
    """Return ``inputs`` with padding of ``layout``, with different masks for targets and source."""
    inputs = replace(inputs, query_padding=padding_masks(layout, inputs.query))
    if inputs.key is None:
        return inputs
    return replace(inputs, key_padding=padding_masks(layout, inputs.key).roll(2, 0))


def masked_inputs(inputs: Inputs) -> list[tuple[str, Tensor, Tensor]]:
    """Return (name, tensor, mask) of each input; the mask of an unpadded input is all False."""
    masked = []
    for name, x in inputs.tensors().items():
        mask = inputs.query_padding if name == "query" else inputs.key_padding
        masked.append((name, x, torch.zeros_like(x[..., 0], dtype=torch.bool) if mask is None else mask))
    return masked


def row_alone(inputs: Inputs, row: int) -> Inputs | None:
    """Return one row without its padding, or None if no real token remains."""
    cut = {}
    for name, x, mask in masked_inputs(inputs):
        cut[name] = x[row : row + 1, ~mask[row]]
        if cut[name].shape[1] == 0:
            return None
    return Inputs(**cut)


def outputs_and_gradients(
    module: Module, inputs: Inputs, direction: Tensor, *, seed: int | None = None
) -> dict[str, Tensor]:
    """Return outputs at real tokens, and their gradients in ``direction`` to real inputs and to parameters."""
    module.zero_grad()
    inputs = inputs.requiring_grad()
    output = inputs.run(module, seed=seed)
    (output * direction)[inputs.real].sum().backward()
    named = {"outputs": output.detach()[inputs.real]}
    for name, x, mask in masked_inputs(inputs):
        if x.grad is not None:
            named[f"gradient of {name}"] = x.grad[~mask]
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            named[f"gradient of {name}"] = parameter.grad.reshape(1, -1).clone()
    return named
