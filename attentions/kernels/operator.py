"""Functions whose gradient is written by hand or recomputed, and which store their inputs and few of their outputs.

Under ``torch.compile``, those written by hand are opaque operators. Otherwise they are plain functions, since the first
call of an operator loads the compiler, which takes as long as importing torch.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attentions.kernels.numerics import once_differentiable, upcast
from cab.kernels import Backend


def like_the_first(first: Tensor, *_: Any) -> Tensor:
    """Return an uninitialized tensor of the shape and dtype of the first input."""
    return torch.empty_like(first)


def differentiable_operator(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., list[Tensor]],
    *,
    gradients: Sequence[str],
    shapes: Callable[..., Any] = like_the_first,
    keeps: Sequence[int] = (),
) -> Callable[..., Any]:
    """Return ``forward`` with ``backward`` as its derivative; under the compiler it is the operator ``cab::name``.

    Args:
        name: of the operator.
        forward: a function with type annotations that takes tensors, None, numbers and lists of numbers.
        backward: a function with type annotations that takes the gradients of all outputs, all inputs of ``forward``,
            and the stored outputs. It returns the gradients of the inputs in ``gradients`` that are not None, in order.
        gradients: names of the inputs that have a gradient.
        shapes: a function from the inputs to uninitialized outputs.
        keeps: indices of the outputs that ``backward`` reads.
    """
    names = list(inspect.signature(forward).parameters)
    differentiable = [names.index(argument) for argument in gradients]
    call = torch.library.custom_op(f"cab::{name}", forward, mutates_args=())
    derive = torch.library.custom_op(f"cab::{name}_backward", backward, mutates_args=())
    num_outputs = len(inspect.signature(backward).parameters) - len(names) - len(keeps)

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.constants = [... if isinstance(x, Tensor) else x for x in inputs]  # `...` is the next saved tensor
        tensors = (x for x in inputs if isinstance(x, Tensor))
        ctx.save_for_backward(*tensors, *(outputs[number] for number in keeps))

    def differentiate(rule: Callable[..., list[Tensor]], ctx: Any, *output_gradients: Tensor) -> tuple[Any, ...]:
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if x is ... else x for x in ctx.constants]
        results = iter(rule(*output_gradients, *inputs, *saved))
        by_input = {index: next(results) for index in differentiable if inputs[index] is not None}
        return tuple(by_input.get(index) for index in range(len(inputs)))

    def gradient_shapes(*arguments: Any) -> list[Tensor]:
        inputs = arguments[num_outputs:]
        return [torch.empty_like(inputs[index]) for index in differentiable if inputs[index] is not None]

    call.register_fake(shapes)
    derive.register_fake(gradient_shapes)
    call.register_autograd(functools.partial(differentiate, derive), setup_context=save)

    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = forward(*inputs)
            save(ctx, inputs, output)
            return output

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *output_gradients: Tensor) -> tuple[Any, ...]:
            return differentiate(backward, ctx, *output_gradients)

    return lambda *inputs: call(*inputs) if torch.compiler.is_compiling() else Plain.apply(*inputs)


def elementwise_backend(readable: Callable[..., Any], kernel: Callable[..., Any]) -> Backend:
    """Return the Triton backend of an elementwise operation: ``kernel`` with the gradient of ``readable``."""
    dtypes = torch.float32, torch.bfloat16, torch.float16
    return Backend("triton", with_gradient_of(readable, kernel), package="triton", dtypes=dtypes, compiles=False)


def with_gradient_of(readable: Callable[..., Any], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``kernel``, whose gradient is that of ``readable``, computed again in float32 or wider from the inputs.

    Both take tensors, None, and options by name, and return one tensor or several.
    """

    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, options: dict[str, Any], *inputs: Tensor | None) -> Any:
            ctx.options = options
            ctx.save_for_backward(*inputs)
            return kernel(*inputs, **options)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            leaves = [x if x is None else upcast(x.detach()).requires_grad_() for x in ctx.saved_tensors]
            with torch.enable_grad():
                result = readable(*leaves, **ctx.options)
            outputs = [result] if isinstance(result, Tensor) else result
            given = [x for x in leaves if x is not None]
            of_outputs = [grad.to(x.dtype) for grad, x in zip(grads, outputs, strict=True)]
            gradients = iter(torch.autograd.grad(outputs, given, of_outputs))
            return None, *(x if x is None else next(gradients).to(x.dtype) for x in ctx.saved_tensors)

    return lambda *inputs, **options: Recomputed.apply(options, *inputs)
