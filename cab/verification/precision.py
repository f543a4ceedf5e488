"""Low-precision checks: the attention works under ``torch.autocast`` in the dtypes that its class declares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from cab.verification.causality import gradient_leak, replacement_leak
from cab.verification.check import Worst, check, supports
from cab.verification.compare import LEAK, distance, gradient_floor
from cab.verification.decoding import STEPS, decode
from cab.verification.inputs import Inputs, outputs_and_gradients, row_alone, with_padding
from cab.verification.numerics import has_exact_gradient
from cab.verification.subject import LONG, Subject

SPACINGS = 8.0
"""Limit for two computations in a low-precision dtype, in units of its machine epsilon."""


def precisions(subject: Subject) -> tuple[torch.dtype, ...]:
    """Return the low-precision dtypes that the class declares (default: bfloat16 and float16)."""
    return getattr(subject.cls, "autocast_dtypes", (torch.bfloat16, torch.float16))


def autocasts(subject: Subject) -> bool:
    """Return whether the class supports any low-precision dtype."""
    return bool(precisions(subject))


def autocasts_causally(subject: Subject) -> bool:
    """Return whether low precision and a causal pattern apply."""
    return autocasts(subject) and subject.pattern.is_causal


def autocasts_decoding(subject: Subject) -> bool:
    """Return whether low precision and decoding apply."""
    return autocasts(subject) and subject.decodes


def converts(subject: Subject) -> bool:
    """Return whether the module can be converted to bfloat16."""
    return torch.bfloat16 in precisions(subject)


def autocasts_gradients(subject: Subject) -> bool:
    """Return whether gradients under autocast can be compared: no choice of tokens depends on rounding."""
    return autocasts(subject) and has_exact_gradient(subject)


def autocasts_padding(subject: Subject) -> bool:
    """Return whether low precision and padding on the left apply."""
    return autocasts(subject) and supports(subject, "left")


CUTS = (0, 15, 63, 127, 150, 191, 255, 298)
"""Positions after which all tokens are replaced."""

GRADIENT, MARGIN = 0.14, 4.0
"""Largest relative distance of a gradient (a cosine of 0.99), and factor on the change that rounded inputs cause."""


@contextmanager
def autocast(subject: Subject, dtype: torch.dtype) -> Iterator[None]:
    """Run the block under autocast to ``dtype`` on the subject's device."""
    with torch.autocast(subject.device.partition(":")[0], dtype=dtype):
        yield


def near(dtype: torch.dtype) -> float:
    """Return the limit for ``dtype``."""
    return SPACINGS * torch.finfo(dtype).eps


@check("precision", applies=autocasts, declared_in="autocast_dtypes")
def autocast_output(subject: Subject) -> Worst:
    """Under autocast, outputs agree with float32 and stay finite for long and large inputs; gradients are finite."""
    worst = Worst("relative distance between autocast and float32", limit=0.0)
    for dtype in precisions(subject):
        for length, num_heads, scale in (
            (17, 4, 1.0),
            (130, 4, 1.0),
            (1030, 1, 8.0),
            *((n, 2, s) for n in subject.long for s in (1.0, 4.0)),  # sums of x8 inputs leave float16 by their size
        ):
            module = subject.build_for(length, num_heads=num_heads)
            inputs = subject.draw(module, length, batch=1, scale=scale).requiring_grad()
            with autocast(subject, dtype):
                output = inputs.run(module)
            output.float().sum().backward()
            where = f"{_name(dtype)}, n={length}, inputs x{scale:g}"
            numbers = [output, *(x.grad for x in inputs.tensors().values() if x.grad is not None)]
            worst.add(sum(int((~x.isfinite()).sum()) for x in numbers), f"NaN or inf values, {where}")
            if scale == 1.0:  # for large inputs, a sharp softmax amplifies rounding of the logits
                with torch.no_grad():
                    worst.add(distance(output, inputs.run(module)), where, limit=near(dtype))
    return worst


@check("precision", applies=autocasts_causally, declared_in="autocast_dtypes")
def autocast_lookahead(subject: Subject) -> Worst:
    """Under autocast, no output has a gradient to a later target or changes when later targets are replaced."""
    worst = Worst("dependence on a later token", limit=LEAK)
    for dtype in precisions(subject):
        module = subject.build().train()
        inputs = subject.draw(module, 37, batch=1)
        with autocast(subject, dtype):
            leak, where = gradient_leak(module, inputs, torch.arange(37))
        worst.add(leak, f"{_name(dtype)}, n=37, gradient, {where}", finding=where)
        module = subject.build(embed_dim=16, num_heads=2)
        inputs = subject.draw(module, 300, batch=1)
        with autocast(subject, dtype):
            leak, where = replacement_leak(module, inputs, torch.tensor(CUTS), 1.0)
        worst.add(leak, f"{_name(dtype)}, n=300, {where}", limit=near(dtype), finding=where)
    return worst


@check("precision", applies=autocasts_gradients, declared_in="autocast_dtypes")
def autocast_gradient(subject: Subject) -> Worst:
    """Under autocast, every gradient has the direction (cosine) and the size of the float32 gradient."""
    worst = Worst("deviation of a gradient", limit=GRADIENT)
    for dtype in precisions(subject):
        for length in (33, 300):
            module = subject.build(embed_dim=16, num_heads=2).train(not subject.is_random_in_training)
            inputs = subject.draw(module, length, batch=1)
            direction = torch.randn_like(inputs.query)
            expected = outputs_and_gradients(module, inputs, direction)
            with autocast(subject, dtype):
                actual = outputs_and_gradients(module, inputs, direction)
            floor = 5.0 * gradient_floor(expected)
            moved = [outputs_and_gradients(module, x, direction) for x in perturbed(inputs, dtype)]
            for name, x in expected.items():
                limit = max([GRADIENT, *(MARGIN * _deviation(other.get(name), x, floor) for other in moved)])
                worst.add(_deviation(actual.get(name), x, floor), f"{_name(dtype)}, n={length}, {name}", limit=limit)
    return worst


@check("precision", applies=autocasts_decoding, declared_in="autocast_dtypes")
def autocast_decoding(subject: Subject) -> Worst:
    """Under autocast, step-by-step decoding reproduces the parallel forward pass."""
    worst = Worst("relative distance between decoding and the parallel forward", limit=0.0)
    for dtype in precisions(subject):
        for length in (19, STEPS) if subject.long else (19,):
            module = subject.build_for(LONG) if length == STEPS else subject.build()
            inputs = subject.draw(module, length, batch=1 if length == STEPS else 2)
            with torch.no_grad(), autocast(subject, dtype):
                decoded, trained = decode(module, inputs, [1] * length), inputs.run(module)
            limit = max(near(dtype), subject.decode_tolerance)
            for start in range(0, length, 128):
                error = distance(decoded[:, start : start + 128], trained[:, start : start + 128])
                worst.add(error, f"{_name(dtype)}, n={length}, tokens from {start}", limit=limit)
    return worst


@check("precision", applies=converts, declared_in="autocast_dtypes")
def module_in_bfloat16(subject: Subject) -> Worst:
    """After ``module.bfloat16()``, outputs are of this type and agree with float32."""
    worst = Worst("relative distance between bfloat16 and float32", limit=near(torch.bfloat16))
    for length in (33, 700):
        coarse = subject.build(embed_dim=16, num_heads=2).bfloat16()
        exact = subject.build(embed_dim=16, num_heads=2)
        exact.load_state_dict(coarse.state_dict())
        inputs = subject.draw(exact, length, batch=1)
        inputs = replace(inputs, **{name: x.bfloat16() for name, x in inputs.tensors().items()})
        with torch.no_grad():
            try:
                output = inputs.run(coarse)
            except RuntimeError as error:  # an error is not a wrong output; only the whole contract includes the dtype
                if subject.keeps_whole_contract:
                    raise
                worst.add(0.0, f"n={length}, refused: {str(error).splitlines()[0]}")
                continue
            expected = inputs.float().run(exact)
            moved = [x.run(exact) for x in perturbed(inputs.float(), torch.bfloat16)]
        worst.add(float(output.dtype != torch.bfloat16), f"n={length}, output of type {_name(output.dtype)}", limit=0.0)
        for start in range(0, length, 128):
            part = slice(start, start + 128)
            limit = max([worst.usual, *(MARGIN * distance(x[:, part], expected[:, part]) for x in moved)])
            worst.add(distance(output[:, part], expected[:, part]), f"n={length}, tokens from {start}", limit=limit)
    return worst


@check("precision", applies=autocasts_padding, declared_in="autocast_dtypes")
def autocast_padding(subject: Subject) -> Worst:
    """Under autocast, a padded row gives the same output as without padding."""
    worst = Worst("relative distance of a padded row", limit=0.0)
    for dtype in precisions(subject):
        module = subject.build()
        inputs = with_padding(subject.draw(module, 17, batch=5), "left")
        with torch.no_grad(), autocast(subject, dtype):
            together = inputs.run(module)
            for row, real in enumerate(inputs.real):
                alone = row_alone(inputs, row)
                assert alone is not None, "left padding leaves at least one token per row"
                error = distance(together[row, real], alone.run(module)[0])
                worst.add(error, f"{_name(dtype)}, n=17, row {row}", limit=near(dtype))
    return worst


def perturbed(inputs: Inputs, dtype: torch.dtype) -> Iterator[Inputs]:
    """Yield inputs in which every value moves by up to two of its spacings in ``dtype``, in two samples.

    Limits grow with the change that this causes: a method that selects tokens amplifies rounding.
    """
    generator = torch.Generator().manual_seed(4)
    for _ in range(2):
        moved = {}
        for name, x in inputs.tensors().items():
            noise = 2.0 * torch.rand(x.shape, generator=generator).to(x) - 1.0
            moved[name] = x * (1.0 + 2.0 * torch.finfo(dtype).eps * noise)
        yield replace(inputs, **moved)


def _deviation(actual: Tensor | None, expected: Tensor, floor: float) -> float:
    """Return the RMS of the error over all values, relative to that of ``expected`` plus ``floor``."""
    actual = torch.zeros_like(expected) if actual is None else actual
    error = (actual.double() - expected.double()).pow(2).mean().sqrt().item()
    return error / (expected.double().pow(2).mean().sqrt().item() + floor) if error else 0.0


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
