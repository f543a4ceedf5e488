"""Inputs of an attention: targets, source and padding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

Module = Any
"""A ``torch.nn.Module`` with the methods and attributes of the contract, which no class of torch declares."""


@dataclass(frozen=True)
class Inputs:
    """Arguments of one call; ``key`` and ``value`` are None in self patterns, masks None without padding."""

    query: Tensor
    key: Tensor | None = None
    value: Tensor | None = None
    query_padding: Tensor | None = None
    key_padding: Tensor | None = None

    def run(self, module: Module, *, seed: int | None = None) -> Tensor:
        """Output [B, N, D]; in a self pattern the mask is given under both names, so either may be honoured.

        With a ``seed``, torch's random numbers are the same in every call.
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
        """Query, and key and value where there are any."""
        named = {"query": self.query, "key": self.key, "value": self.value}
        return {name: x for name, x in named.items() if x is not None}

    def requiring_grad(self) -> Inputs:
        """Copies of the inputs that collect gradients."""
        return replace(self, **{name: x.detach().clone().requires_grad_() for name, x in self.tensors().items()})

    def double(self) -> Inputs:
        """The inputs in float64."""
        return replace(self, **{name: x.double() for name, x in self.tensors().items()})

    def float(self) -> Inputs:
        """The inputs in float32."""
        return replace(self, **{name: x.float() for name, x in self.tensors().items()})

    def given(self) -> dict[str, Tensor]:
        """:meth:`tensors`, and the masks where there are any."""
        masks = {"query_padding": self.query_padding, "key_padding": self.key_padding}
        return self.tensors() | {name: mask for name, mask in masks.items() if mask is not None}

    def rows(self, index: Any) -> Inputs:
        """The rows ``index`` of every tensor."""
        return replace(self, **{name: x[index] for name, x in self.given().items()})

    def repeated(self, count: int) -> Inputs:
        """The one row of the inputs, ``count`` times."""
        return replace(self, **{name: x.expand(count, -1, -1) for name, x in self.tensors().items()})

    def prefix(self, length: int) -> Inputs:
        """The first ``length`` targets, with the whole source."""
        mask = self.query_padding
        return replace(self, query=self.query[:, :length], query_padding=None if mask is None else mask[:, :length])

    @property
    def real(self) -> Tensor:
        """Bool [B, N]: targets that are not padding."""
        if self.query_padding is None:
            return self.query.new_ones(self.query.shape[:2], dtype=torch.bool)
        return ~self.query_padding


def padding_masks(layout: str, x: Tensor) -> Tensor:
    """Bool masks [B, N] for ``x`` [B, N, D], each row with another number of padded positions, the first with none.

    Layouts: ``left``, ``right``, ``inside`` (scattered, never an end of the row), ``row`` (row 1 entirely).
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
    """``inputs`` with padding of ``layout``; in cross patterns targets and source are padded, and not alike."""
    inputs = replace(inputs, query_padding=padding_masks(layout, inputs.query))
    if inputs.key is None:
        return inputs
    return replace(inputs, key_padding=padding_masks(layout, inputs.key).roll(2, 0))


def padded_places(inputs: Inputs) -> list[tuple[str, Tensor, Tensor]]:
    """(name, tensor, mask) of each input; the mask of one without padding is all False."""
    places = []
    for name, x in inputs.tensors().items():
        mask = inputs.query_padding if name == "query" else inputs.key_padding
        places.append((name, x, torch.zeros_like(x[..., 0], dtype=torch.bool) if mask is None else mask))
    return places


def row_alone(inputs: Inputs, row: int) -> Inputs | None:
    """One row with its real tokens only; None where there are none."""
    cut = {}
    for name, x, mask in padded_places(inputs):
        cut[name] = x[row : row + 1, ~mask[row]]
        if cut[name].shape[1] == 0:
            return None
    return Inputs(**cut)


def outputs_and_gradients(
    module: Module, inputs: Inputs, direction: Tensor, *, seed: int | None = None
) -> dict[str, Tensor]:
    """Real outputs, and their gradients in ``direction`` to the real inputs and to every parameter."""
    module.zero_grad()
    inputs = inputs.requiring_grad()
    output = inputs.run(module, seed=seed)
    (output * direction)[inputs.real].sum().backward()
    named = {"outputs": output.detach()[inputs.real]}
    for name, x, mask in padded_places(inputs):
        if x.grad is not None:
            named[f"gradient of {name}"] = x.grad[~mask]
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            named[f"gradient of {name}"] = parameter.grad.reshape(1, -1).clone()
    return named
