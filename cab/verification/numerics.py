"""Numerical checks: any length, finite values, exact gradients, agreement with the reference, and low precision."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cab.verification.causality import gradient_leak, replacement_leak
from cab.verification.check import Measurements, check
from cab.verification.compare import LEAK, difference, distance, errors, gradient_floor, rms, rounding
from cab.verification.decoding import LONGEST_STEPS as STEPS
from cab.verification.entries import decode
from cab.verification.inputs import Inputs, Module, gradients, outputs_and_gradients, rows_alone
from cab.verification.subject import LONG, Subject

ANY = (2, 3, 4, 5, 7, 8, 11, 15, 16, 17, 24, 31, 32, 33, 47, 63, 64, 65, 96, 100, 127, 128, 129, 192, 255, 257)
BEYOND = (385, 700, 1025, 2049, 3001)
PAIRS = ((1, 1), (1, 17), (17, 1), (1, 130), (130, 1), (5, 64), (64, 5), (33, 33), (129, 65))
TURNS = ((33, 3), (130, 3), (17, 3), (257, 2), (130, 3), (1, 4), (65, 3), (33, 3))
"""Lengths and batch sizes of consecutive calls of one module."""


@check("lengths", "NaN or inf values and gradients")
def length_one(subject: Subject) -> Measurements:
    """One target token, also with one source token, gives finite outputs and gradients."""
    return runs(subject, [(1, 1), (1, 2)] if subject.pattern.is_cross else [(1, 1)])


@check("lengths", "NaN or inf values and gradients")
def any_length(subject: Subject) -> Measurements:
    """Every length gives finite outputs and gradients in the shape of the input, for any window or block size."""
    pairs = [(length, length) for length in ANY]
    if subject.pattern.is_cross:
        pairs += [*PAIRS, *((7, length) for length in subject.long)]
    return runs(subject, pairs + [(length, length) for length in (*BEYOND, *subject.long) if subject.long])


@check("lengths", "relative error compared with a new module")
def lengths_in_turn(subject: Subject) -> Measurements:
    """No output depends on the lengths of earlier calls."""
    for training in (False, True):
        used = subject.build().train(training)
        for turn, (length, batch) in enumerate(TURNS):
            fresh = subject.build().train(training)
            inputs = subject.draw(fresh, length, batch=batch, seed=10 + turn, padding="left" if turn % 2 else "")
            with torch.no_grad():
                actual, expected = (inputs.run(module, seed=1)[inputs.real] for module in (used, fresh))
            earlier = ", ".join(str(n) for n, _ in TURNS[:turn]) or "no call"
            yield difference(actual, expected), f"n={length}, {batch} rows, after {earlier}"


def runs(subject: Subject, pairs: list[tuple[int, int]]) -> Measurements:
    """Count NaN and inf values and gradients, over lengths of targets and source and numbers of heads."""
    for index, (length, source_length) in enumerate(pairs):
        embed_dim, num_heads = ((32, 4), (24, 3), (8, 1))[index % 3]
        where = f"n={length}, m={source_length}" if subject.pattern.is_cross else f"n={length}"
        if max(length, source_length) > max(ANY):
            embed_dim, num_heads = 8, 1
        size: dict[str, Any] = {"embed_dim": embed_dim, "num_heads": num_heads}
        batch = 1 + index % 2
        module, inputs = subject.case(length, source_length, batch=batch, training=True, requires_grad=True, **size)
        output = inputs.run(module)
        output.sum().backward()
        if output.shape != inputs.query.shape:
            raise ValueError(f"{where}: output has shape {tuple(output.shape)}, query {tuple(inputs.query.shape)}")
        numbers = [output, *(x.grad for x in inputs.tensors().values() if x.grad is not None)]
        yield sum(int((~x.isfinite()).sum()) for x in numbers), where


FAST = 5e-4
"""Limit between fast and reference implementation, which sum in a different order."""

SLOPE, SLOPE_FLOAT32 = 1e-3, 0.02
"""Limits between gradient and difference quotient, in float64 and in float32."""


@check("numerics", "NaN or inf values in outputs and gradients")
def finite_gradients(subject: Subject) -> Measurements:
    """For inputs of scale 0, 1 and 10, and for identical tokens, outputs and gradients are finite."""
    cases = [(0.0, 17), (1.0, 33), (10.0, 1), (10.0, 33), (10.0, 257), *((10.0, n) for n in subject.long)]
    for scale, length in cases:
        for equal in (False, True):
            module, inputs = subject.case(length, scale=scale, training=True)
            if equal:
                inputs = inputs.map(lambda x: x[:, :1].expand_as(x))
            for name, x in outputs_and_gradients(module, inputs, torch.randn_like(inputs.query)).items():
                where = f"{name}, n={length}, inputs x{scale:g}{', all tokens equal' if equal else ''}"
                yield (~x.isfinite()).sum(), where


@check(
    "numerics",
    "relative error between gradient and central differences",
    limit=SLOPE,
    applies=lambda s: s.claims.has_exact_gradient,
    declared_in="claims.has_exact_gradient",
)
def gradient_is_derivative(subject: Subject) -> Measurements:
    """Every gradient, of inputs and parameters, agrees with central differences in random directions."""
    for length, seed, layout, dropout in (
        (5, 1, "", None),
        (19, 2, "", None),
        (150, 3, "", None),
        (19, 4, "inside", None),
        (19, 5, "", 0.0),
        (33, 6, "left", subject.dropout),
        *((n, 7, "", None) for n in (530, *subject.long) if subject.long),
    ):
        module = subject.build_for(length, seed=seed, dropout=dropout or 0.0).train(dropout is not None)
        inputs = subject.draw(module, length, batch=3 if layout else 1, seed=seed, padding=layout)
        error, limit = derivative_error(module, inputs)
        mode = "" if dropout is None else f", in training with dropout {dropout:g}"
        yield error, f"n={length}, seed {seed}{f', padding {layout}' if layout else ''}{mode}", limit


def derivative_error(module: Module, inputs: Inputs) -> tuple[float, float]:
    """Return the smallest error of the gradient over some steps of the difference quotient, and its limit."""
    try:
        module, inputs, limit = module.double(), inputs.map(Tensor.double), SLOPE
        error = slope_error(module, inputs, 1e-6)  # rarely crosses a kink
        if error > SLOPE:  # parts may compute in float32, which a larger step resolves
            error = min(error, slope_error(module, inputs, 1e-3))
    except Exception:  # float64 is optional: use steps that float32 can resolve
        module, inputs, limit = module.float(), inputs.map(Tensor.float), SLOPE_FLOAT32
        error = min(slope_error(module, inputs, step) for step in (1e-2, 3e-3, 1e-3))
    noise = rounding(module, inputs)
    return error, limit if noise < 1e-6 else 1e3 * noise  # rounding error of the quotient in a coarser dtype


def slope_error(module: Module, inputs: Inputs, step: float) -> float:
    """Return the error of the directional derivative, relative to the norm of the gradient, in one random direction."""
    inputs = inputs.requiring_grad()
    output = inputs.run(module, seed=1)
    cotangent = torch.randn_like(output) * inputs.real.unsqueeze(-1)
    parameters = [p for p in module.parameters() if p.requires_grad and p.is_floating_point()]
    leaves = [*inputs.tensors().values(), *parameters]
    slopes = gradients((output * cotangent).sum(), leaves)
    directions = [torch.randn_like(x) * x.detach().abs().mean().clamp_min(1e-3) for x in leaves]
    products = [(g, d) for g, d in zip(slopes, directions, strict=True) if g is not None]
    slope = sum((_dot(g, d) for g, d in products), start=0.0)
    size = sum((_dot(g * d, g * d) for g, d in products), start=0.0) ** 0.5

    def moved(amount: float) -> Tensor:
        for x, d in zip(leaves, directions, strict=True):
            x.add_(d, alpha=amount)
        return inputs.run(module, seed=1).double()

    with torch.no_grad():
        above, below = moved(step), moved(-2.0 * step)
        moved(step)
        quotient = _dot(above - below, cotangent) / (2.0 * step)
    error = abs(slope - quotient)
    return error / size if error else 0.0


def _dot(a: Tensor, b: Tensor) -> float:
    return (a.double() * b.double()).sum().item()


@check(
    "numerics",
    "relative error between fast and reference implementation",
    limit=FAST,
    applies=lambda s: s.has_reference,
)
def fast_is_reference(subject: Subject) -> Measurements:
    """Fast and reference implementation give equal outputs and gradients, with and without padding."""
    for length, embed_dim, num_heads, layout, scale, training in (
        (1, 32, 4, "", 1.0, False),
        (17, 24, 3, "", 4.0, True),
        (33, 32, 4, "inside", 1.0, False),
        (67, 16, 2, "", 1.0, False),
        (21, 12, 1, "left", 4.0, True),
        (150, 32, 2, "inside", 1.0, False),  # for kernels that need head dimension 16 and length 128
        (40, 32, 4, "right", 1.0, True),
    ):
        size: dict[str, Any] = {"embed_dim": embed_dim, "num_heads": num_heads}
        batch = 5 if layout else 2
        module, inputs = subject.case(length, batch=batch, scale=scale, padding=layout, training=training, **size)
        direction = torch.randn_like(inputs.query)
        fast = outputs_and_gradients(module, inputs, direction, seed=1)
        module.use_reference = True
        slow = outputs_and_gradients(module, inputs, direction, seed=1)
        how = f"{f', padding {layout}' if layout else ''}{', in training' if training else ''}"
        yield from errors(fast, slow, f"n={length}, heads {num_heads}, inputs x{scale:g}{how}")


precision_check = partial(check, "precision", applies=lambda s: bool(s.autocast_dtypes), declared_in="autocast_dtypes")

GRADIENT, MARGIN = 0.14, 4.0
"""Largest relative distance of a gradient (a cosine of 0.99), and factor on the change that rounded inputs cause."""


def autocast(subject: Subject, dtype: torch.dtype) -> torch.autocast:
    """Return the autocast to ``dtype`` on the subject's device."""
    return torch.autocast(subject.device.partition(":")[0], dtype=dtype)


def near(dtype: torch.dtype) -> float:
    """Return the limit for two computations in ``dtype``: eight times its machine epsilon."""
    return 8.0 * torch.finfo(dtype).eps


@precision_check("relative distance between autocast and float32")
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
        for length in (33, 300):
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


@precision_check(
    "relative distance between decoding and the parallel forward", applies=lambda s: s.autocast_dtypes and s.decodes
)
def autocast_decoding(subject: Subject) -> Measurements:
    """Under autocast, step-by-step decoding reproduces the parallel forward pass."""
    for dtype in subject.autocast_dtypes:
        for length in (19, STEPS) if subject.long else (19,):
            module = subject.build_for(LONG) if length == STEPS else subject.build()
            inputs = subject.draw(module, length, batch=1 if length == STEPS else 2)
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


@precision_check(
    "relative distance of a padded row", applies=lambda s: s.autocast_dtypes and "left" in s.padding_layouts
)
def autocast_padding(subject: Subject) -> Measurements:
    """Under autocast, a padded row gives the same output as without padding."""
    for dtype in subject.autocast_dtypes:
        module, inputs = subject.case(17, batch=5, padding="left")
        with torch.no_grad(), autocast(subject, dtype):
            together = inputs.run(module)
            for row, alone in rows_alone(inputs):
                error = distance(together[row, inputs.real[row]], alone.run(module)[0])
                yield error, f"{_name(dtype)}, n=17, row {row}", near(dtype)


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
