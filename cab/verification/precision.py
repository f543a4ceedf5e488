"""Precision checks: under autocast and in bfloat16, results stay near those in float32."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from cab.verification.causality import gradient_leak, replacement_leak
from cab.verification.check import Measurements, check
from cab.verification.compare import LEAK, distance, gradient_floor, rms
from cab.verification.decoding import LONGEST_STEPS
from cab.verification.entries import decode
from cab.verification.inputs import Inputs, Module, outputs_and_gradients, rows_alone
from cab.verification.subject import LONG, Subject

precision_check = partial(check, "precision", applies=lambda s: bool(s.autocast_dtypes))

GRADIENT, MARGIN = 0.14, 4.0
"""Largest relative distance of a gradient (a cosine of 0.99), and factor on the change that rounded inputs cause."""


def autocast(subject: Subject, dtype: torch.dtype) -> torch.autocast:
    """Return the autocast to ``dtype`` on the subject's device."""
    return torch.autocast(subject.device.partition(":")[0], dtype=dtype)


def near(dtype: torch.dtype) -> float:
    """Return the limit for two computations in ``dtype``: eight times its machine epsilon."""
    return 8.0 * torch.finfo(dtype).eps


@precision_check("relative distance between autocast and float32", declared_in="autocast_dtypes")
def autocast_output(subject: Subject) -> Measurements:
    """Under autocast, outputs agree with float32 and stay finite for long and large inputs; gradients are finite."""
    for dtype in subject.autocast_dtypes:
        for length, num_heads, scale in (
            (17, 4, 1.0),
            (130, 4, 1.0),
            (1030, 1, 8.0),
            *((n, 2, s) for n in subject.long for s in (1.0, 4.0)),  # sums of x8 inputs leave float16 by their size
        ):
            module, inputs = subject.case(length, batch=1, scale=scale, num_heads=num_heads, requires_grad=True)
            with autocast(subject, dtype):
                output = inputs.run(module)
            output.float().sum().backward()
            where = f"{_name(dtype)}, n={length}, inputs x{scale:g}"
            numbers = [output, *(x.grad for x in inputs.tensors().values() if x.grad is not None)]
            yield sum(int((~x.isfinite()).sum()) for x in numbers), f"NaN or inf values, {where}"
            if scale == 1.0:  # for large inputs, a sharp softmax amplifies rounding of the logits
                with torch.no_grad():
                    yield distance(output, inputs.run(module)), where, near(dtype)


@precision_check("dependence on a later token", limit=LEAK, applies=lambda s: s.autocast_dtypes and s.pattern.is_causal)
def autocast_lookahead(subject: Subject) -> Measurements:
    """Under autocast, no output has a gradient to a later target or changes when later targets are replaced."""
    for dtype in subject.autocast_dtypes:
        module, inputs = subject.case(37, batch=1, training=True)
        with autocast(subject, dtype):
            yield gradient_leak(module, inputs, torch.arange(37), f"{_name(dtype)}, n=37, gradient")
        module, inputs = subject.case(300, batch=1, embed_dim=16, num_heads=2)
        cuts = torch.tensor([0, 15, 63, 127, 150, 191, 255, 298])
        with autocast(subject, dtype):
            yield replacement_leak(module, inputs, cuts, 1.0, f"{_name(dtype)}, n=300", near(dtype))


@precision_check(
    "deviation of a gradient", limit=GRADIENT, applies=lambda s: s.autocast_dtypes and s.claims.has_exact_gradient
)
def autocast_gradient(subject: Subject) -> Measurements:
    """Under autocast, every gradient has the direction (cosine) and the size of the float32 gradient."""
    for dtype in subject.autocast_dtypes:
        yield from _masked_gradient(subject, dtype)
        for length in (33, 300) if subject.long else (33,):
            training = not subject.is_random_in_training
            module, inputs = subject.case(length, batch=1, embed_dim=16, num_heads=2, training=training)
            direction = torch.randn_like(inputs.query)
            expected = outputs_and_gradients(module, inputs, direction)
            with autocast(subject, dtype):
                actual = outputs_and_gradients(module, inputs, direction)
            floor = 5.0 * gradient_floor(expected)
            moved = [outputs_and_gradients(module, x, direction) for x in perturbed(inputs, dtype)]
            for name, x in expected.items():
                limit = max([GRADIENT, *(MARGIN * _deviation(other.get(name), x, floor) for other in moved)])
                yield _deviation(actual.get(name), x, floor), f"{_name(dtype)}, n={length}, {name}", limit


def _masked_gradient(subject: Subject, dtype: torch.dtype) -> Measurements:
    """Compare the gradients of parameters in a padded batch with the sum over its rows, both under autocast."""
    module = subject.build(embed_dim=16, num_heads=2)
    inputs = subject.draw(module, 33, batch=3, padding="left")
    direction, parts = torch.randn_like(inputs.query), []
    with autocast(subject, dtype):
        together = outputs_and_gradients(module, inputs, direction)
        for row, alone in rows_alone(inputs):
            part = outputs_and_gradients(module, alone, direction[row : row + 1, inputs.real[row]])
            parts.append({name: x for name, x in part.items() if x.shape[0] == 1 and name != "outputs"})
    expected = {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}
    floor = 5.0 * gradient_floor(expected)
    for name, x in expected.items():
        yield _deviation(together.get(name), x, floor), f"{_name(dtype)}, n=33, padding left, {name}", GRADIENT


@precision_check(
    "relative distance between decoding and the parallel forward", applies=lambda s: s.autocast_dtypes and s.decodes
)
def autocast_decoding(subject: Subject) -> Measurements:
    """Under autocast, step-by-step decoding reproduces the parallel forward pass."""
    for dtype in subject.autocast_dtypes:
        for length in (19, LONGEST_STEPS) if subject.long else (19,):
            module = subject.build_for(LONG) if length == LONGEST_STEPS else subject.build()
            inputs = subject.draw(module, length, batch=1 if length == LONGEST_STEPS else 2)
            with torch.no_grad(), autocast(subject, dtype):
                decoded, trained = decode(module, inputs, [1] * length), inputs.run(module)
            limit = max(near(dtype), subject.decode_tolerance)
            for block in _blocks(length):
                error = distance(decoded[:, block], trained[:, block])
                yield error, f"{_name(dtype)}, n={length}, tokens from {block.start}", limit


@precision_check(
    "relative distance between bfloat16 and float32",
    limit=near(torch.bfloat16),
    applies=lambda s: torch.bfloat16 in s.autocast_dtypes,
    declared_in="autocast_dtypes",
)
def module_in_bfloat16(subject: Subject) -> Measurements:
    """After ``module.bfloat16()``, outputs are of this type and agree with float32."""
    for length in (33, 700):
        coarse = subject.build(embed_dim=16, num_heads=2).bfloat16()
        exact = subject.build(embed_dim=16, num_heads=2)
        exact.load_state_dict(coarse.state_dict())
        inputs = subject.draw(exact, length, batch=1).map(Tensor.bfloat16)
        precise = inputs.map(Tensor.float)
        with torch.no_grad():
            try:
                output = inputs.run(coarse)
            except RuntimeError as error:  # an error is not a wrong output; only the whole contract includes the dtype
                if subject.keeps_whole_contract:
                    raise
                yield 0.0, f"n={length}, refused: {str(error).splitlines()[0]}"
                continue
            expected = precise.run(exact)
            moved = [x.run(exact) for x in perturbed(precise, torch.bfloat16)]
        yield float(output.dtype != torch.bfloat16), f"n={length}, output of type {_name(output.dtype)}", 0.0
        for block in _blocks(length):
            limit = max([near(torch.bfloat16), *(MARGIN * distance(x[:, block], expected[:, block]) for x in moved)])
            yield distance(output[:, block], expected[:, block]), f"n={length}, tokens from {block.start}", limit
    if subject.keeps_whole_contract:
        module = subject.build(embed_dim=16, num_heads=2).bfloat16()
        inputs = subject.draw(module, 290, batch=3, padding="right").map(Tensor.bfloat16)
        yield from _rows(module, inputs, "n=290, padding right")


@precision_check(
    "relative distance of a padded row", applies=lambda s: s.autocast_dtypes and "left" in s.padding_layouts
)
def autocast_padding(subject: Subject) -> Measurements:
    """Under autocast, a padded row gives the same output as without padding."""
    for dtype in subject.autocast_dtypes:
        module, inputs = subject.case(17, batch=5, padding="left")
        with autocast(subject, dtype):
            yield from _rows(module, inputs, f"{_name(dtype)}, n=17", near(dtype))


@torch.no_grad()
def _rows(module: Module, inputs: Inputs, where: str, limit: float | None = None) -> Measurements:
    """Compare each row of a padded batch with the row alone."""
    together = inputs.run(module)
    for row, alone in rows_alone(inputs):
        actual, expected = together[row, inputs.real[row]], alone.run(module)[0]
        for block in _blocks(len(actual)):
            yield distance(actual[block], expected[block]), f"{where}, row {row}, tokens from {block.start}", limit


def perturbed(inputs: Inputs, dtype: torch.dtype) -> Iterator[Inputs]:
    """Yield inputs in which every value moves by up to two of its spacings in ``dtype``, in two samples.

    Limits grow with the change that this causes: a method that selects tokens amplifies rounding.
    """
    generator = torch.Generator().manual_seed(4)

    def moved(x: Tensor) -> Tensor:
        noise = 2.0 * torch.rand(x.shape, generator=generator).to(x) - 1.0
        return x * (1.0 + 2.0 * torch.finfo(dtype).eps * noise)

    for _ in range(2):
        yield inputs.map(moved)


def _deviation(actual: Tensor | None, expected: Tensor, floor: float) -> float:
    """Return the RMS of the error over all values, relative to that of ``expected`` plus ``floor``."""
    error = rms(expected if actual is None else actual.double() - expected.double())
    return error / (rms(expected) + floor) if error else 0.0


def _blocks(length: int) -> list[slice]:
    """Return the blocks of 128 tokens that are compared one by one."""
    return [slice(start, start + 128) for start in range(0, length, 128)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
