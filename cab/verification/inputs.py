"""Inputs of an attention: targets, source and padding masks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cab.attention import Attention
from cab.errors import UserError
from cab.padding import real_tokens
from cab.training import TrainableModule, auxiliary_loss

LAYOUTS = ("right", "left", "inside", "row")
"""Layouts of padding that a class may support; see :func:`padding_masks`."""

INPUTS = ("query", "key", "value")

MASKS = ("query_padding_mask", "key_padding_mask")

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

        In self patterns the mask is passed under both names. With a ``seed``, torch's generator is seeded first. The
        attribute ``batch_first`` of another package's module is respected, and the first of several outputs returned.
        """
        if seed is not None:
            seed_torch(seed, self.query.device)
        is_own = isinstance(module, Attention)
        multiple = 1 if is_own else getattr(module, "length_multiple", 1)
        if self.query.shape[1] % multiple or (self.key is not None and self.key.shape[1] % multiple):
            blocks = self.in_blocks(multiple, has_masks=bool(getattr(module, "padding_layouts", LAYOUTS)))
            return blocks.run(module)[:, : self.query.shape[1]]
        key_padding = self.query_padding if self.key is None else self.key_padding
        masks: dict[str, Any] = {"query_padding_mask": self.query_padding, "key_padding_mask": key_padding}
        masks = {name: mask for name, mask in masks.items() if mask is not None}
        if is_own:
            return module(*self.tensors().values(), **masks)
        is_turned = getattr(module, "batch_first", True) is False
        output = first_value(module(*(x.transpose(0, 1) if is_turned else x for x in self.tensors().values()), **masks))
        return output.transpose(0, 1) if is_turned else output

    def in_blocks(self, length: int, *, has_masks: bool) -> Inputs:
        """Return the inputs with zeros at the end, up to a multiple of ``length``, as padding if there are masks."""
        blocks: dict[str, Tensor] = {}
        for name, x, mask in masked_inputs(self):
            more = -x.shape[1] % length
            blocks[name] = F.pad(x, (0, 0, 0, more))
            if has_masks and (more or mask.any()):
                blocks["query_padding" if name == "query" else "key_padding"] = F.pad(mask, (0, more), value=True)
        return Inputs(**blocks)

    def tensors(self) -> dict[str, Tensor]:
        """Return the query and, if present, key and value by name."""
        return {name: x for name in INPUTS if (x := getattr(self, name)) is not None}

    def arguments(self) -> dict[str, Tensor]:
        """Return the tensors and masks that are present."""
        return {name: x for name, x in vars(self).items() if x is not None}

    def map(self, function: Callable[[Tensor], Tensor]) -> Inputs:
        """Return the inputs with ``function`` applied to query, key and value."""
        return replace(self, **{name: function(x) for name, x in self.tensors().items()})

    def requiring_grad(self) -> Inputs:
        """Return copies of the inputs that accumulate gradients."""
        return self.map(lambda x: x.detach().clone().requires_grad_())

    def filled(self, values: Callable[[Tensor], Tensor]) -> Inputs:
        """Return the inputs with ``values(x)`` in the padding of each x."""
        padded = masked_inputs(self)
        return replace(self, **{name: torch.where(mask[..., None], values(x), x) for name, x, mask in padded})

    def rows(self, index: Any) -> Inputs:
        """Return the rows ``index`` of every tensor."""
        return replace(self, **{name: x[index] for name, x in self.arguments().items()})

    def repeated(self, count: int) -> Inputs:
        """Return the inputs, of batch size one, repeated ``count`` times."""
        return self.map(lambda x: x.expand(count, -1, -1))

    def targets(self, start: int, stop: int | None = None) -> Inputs:
        """Return the targets from ``start`` to ``stop`` with the whole source."""
        mask = None if self.query_padding is None else self.query_padding[:, start:stop]
        return replace(self, query=self.query[:, start:stop], query_padding=mask)

    @property
    def real(self) -> Tensor:
        """Mask [B, N] of the targets that are not padding."""
        return real_tokens(self.query, self.query_padding)


def first_value(output: Any) -> Any:
    """Return the first value of a tuple, a dict or a dataclass, or the output itself."""
    values = vars(output) if is_dataclass(output) and not isinstance(output, dict) else output
    values = [*values.values()] if isinstance(values, dict) else values
    return values[0] if isinstance(values, list | tuple) and values else output


def seed_torch(seed: int, device: torch.device | str) -> None:
    """Seed torch's generator, and those of GPUs if ``device`` is one; on a CPU, ``torch.manual_seed`` takes longer."""
    if torch.device(device).type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def arguments_of(function: Callable[..., Any]) -> set[str]:
    """Return the names of the arguments of a function or constructor, with ``kwargs`` for any keyword arguments.

    Raises:
        UserError: Python cannot read the signature.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError) as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise UserError(
            f"the arguments of {name} cannot be read ({error}); verify a function in a file that calls it"
        ) from error
    return {"kwargs" if p.kind is p.VAR_KEYWORD else name for name, p in parameters.items()}


def takes_masks(forward: Callable[..., Any]) -> bool:
    """Return whether ``forward`` accepts a padding mask of this project."""
    return not arguments_of(forward).isdisjoint({*MASKS, "kwargs"})


def padding_masks(layout: str, x: Tensor) -> Tensor:
    """Return a bool mask [B, N] for ``x`` [B, N, D], with a different number of padded positions per row.

    The first row has no padding. Layouts: ``left``, ``right``, ``inside`` (scattered, not at the ends of the row),
    ``row`` (all of row 1) and ``single_token`` (all but one token of every row).
    """
    batch, length = x.shape[:2]
    generator = torch.Generator().manual_seed(3)
    mask = torch.zeros(batch, length, dtype=torch.bool)
    if layout == "single_token":
        return (torch.arange(length, device=x.device) - 4 * torch.arange(batch, device=x.device)[:, None]) % length != 0
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
        masked.append((name, x, ~real_tokens(x, inputs.query_padding if name == "query" else inputs.key_padding)))
    return masked


def rows_alone(inputs: Inputs) -> Iterator[tuple[int, Inputs]]:
    """Yield the number and the real tokens of each row that has targets and source tokens."""
    for row in range(len(inputs.query)):
        tokens = {name: x[row : row + 1, ~mask[row]] for name, x, mask in masked_inputs(inputs)}
        if all(x.shape[1] for x in tokens.values()):
            yield row, Inputs(**tokens)


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of the tensors."""
    return {name: x.detach().clone() for name, x in tensors.items()}


def leaves_of(module: Module, inputs: Inputs) -> dict[str, Tensor]:
    """Return the inputs and the trainable parameters by name."""
    return inputs.tensors() | {name: x for name, x in module.named_parameters() if x.requires_grad}


def learned(module: Module, like: Tensor) -> dict[str, Tensor]:
    """Return what a call adds: auxiliary loss [1, 1], zero without one, statistics [1, S] and their number [1, 1]."""
    loss, zero = auxiliary_loss(module), like.new_zeros(1, 1)
    learners = ((path, m) for path, m in module.named_modules() if isinstance(m, TrainableModule))
    statistics = {
        f"statistics {path}.{name}": x.reshape(1, -1).to(zero)
        for path, learner in learners
        for name, x in learner.pop_statistics().items()
    }
    return (
        {"auxiliary loss": zero if loss is None else loss.detach().reshape(1, 1)}
        | {"statistics": zero + len(statistics)}
        | statistics
    )


def gradients_of(
    output: Tensor, leaves: Mapping[str, Tensor], direction: Tensor | None = None, *, retain_graph: bool = False
) -> dict[str, Tensor]:
    """Return the gradients of ``output`` in ``direction`` that exist; a parameter's is one row, as it is one thing."""
    tensors = gradients(output, list(leaves.values()), direction, retain_graph=retain_graph)
    named = {name: x for name, x in zip(leaves, tensors, strict=True) if x is not None}
    return {name: x.reshape(1, -1) if isinstance(leaves[name], nn.Parameter) else x for name, x in named.items()}


def gradients(
    output: Tensor, leaves: Sequence[Tensor], direction: Tensor | None = None, *, retain_graph: bool = False
) -> tuple[Tensor | None, ...]:
    """Return the gradient of ``output`` to each leaf; None for a leaf that does not affect it."""
    try:
        return torch.autograd.grad(output, leaves, direction, retain_graph=True, allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
    for x in leaves:
        x.grad = None
    output.backward(direction, retain_graph=retain_graph)  # the only backward pass of reentrant checkpoints
    accumulated = tuple(x.grad for x in leaves)
    for x in leaves:
        x.grad = None
    return accumulated


def gradient_to(x: Tensor, output: Tensor, *, retain_graph: bool = False) -> Tensor:
    """Return the gradient of a scalar ``output`` to the input ``x``; RuntimeError if no gradient reaches it."""
    gradient = gradients(output, [x], retain_graph=retain_graph)[0] if output.requires_grad else None
    if gradient is None:
        raise RuntimeError("the output is detached from the inputs (no gradient reaches them)")
    return gradient
