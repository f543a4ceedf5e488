"""Functions with gradients by hand as operators of torch: opaque to ``torch.compile``, keeping their inputs alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def differentiable_operator(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., list[Tensor]],
    *,
    shapes: Callable[..., Any],
    gradients: Sequence[str],
    keeps: Sequence[int] = (),
) -> Callable[..., Any]:
    """``forward`` as the operator ``cab::name``, with ``backward`` as its derivative.

    Args:
        forward: a function with type annotations, of tensors, tensors or None, numbers and lists of numbers.
        backward: a function with type annotations, of the gradients of all outputs, all inputs of ``forward``, and
            the outputs that are kept; gives the gradients of the inputs in ``gradients`` that are not None, in order.
        shapes: uncleared outputs, from the inputs.
        gradients: names of the inputs that have a gradient.
        keeps: numbers of the outputs that ``backward`` reads.
    """
    names = list(inspect.signature(forward).parameters)
    places = [names.index(wanted) for wanted in gradients]
    call = torch.library.custom_op(f"cab::{name}", forward, mutates_args=())
    derive = torch.library.custom_op(f"cab::{name}_backward", backward, mutates_args=())
    call.register_fake(shapes)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]
        ctx.tensors = [place for place, x in enumerate(inputs) if isinstance(x, Tensor)]
        ctx.save_for_backward(*(inputs[place] for place in ctx.tensors), *(outputs[number] for number in keeps))

    def differentiate(ctx: Any, *output_gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, saved = list(ctx.others), ctx.saved_tensors
        for place, tensor in zip(ctx.tensors, saved, strict=False):
            inputs[place] = tensor
        found = iter(derive(*output_gradients, *inputs, *saved[len(ctx.tensors) :]))
        given: list[Tensor | None] = [None] * len(inputs)
        for place in places:
            if inputs[place] is not None:
                given[place] = next(found)
        return tuple(given)

    @derive.register_fake
    def _(*arguments: Any) -> list[Tensor]:
        first = len(inspect.signature(backward).parameters) - len(names) - len(keeps)
        inputs = arguments[first : first + len(names)]
        return [torch.empty_like(inputs[place]) for place in places if inputs[place] is not None]

    call.register_autograd(differentiate, setup_context=save)
    return call
