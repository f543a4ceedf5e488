"""Low-precision checks: the attention works under ``torch.autocast`` in the dtypes that its class declares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cab.verification.causality import gradient_leak
from cab.verification.check import Worst, check, supports
from cab.verification.compare import LEAK, distance
from cab.verification.decoding import decode
from cab.verification.inputs import row_alone, with_padding
from cab.verification.subject import Subject

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


def autocasts_padding(subject: Subject) -> bool:
    """Return whether low precision and padding on the left apply."""
    return autocasts(subject) and supports(subject, "left")


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
            *((n, 1, s) for n in subject.long for s in (1.0, 8.0)),
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
    """Under autocast, no output has a gradient with respect to a later target."""
    worst = Worst("gradient with respect to a later token, relative to the largest,", limit=LEAK)
    for dtype in precisions(subject):
        module = subject.build().train()
        inputs = subject.draw(module, 37, batch=1)
        with autocast(subject, dtype):
            leak, where = gradient_leak(module, inputs, torch.arange(37))
        worst.add(leak, f"{_name(dtype)}, n=37, {where}")
    return worst


@check("precision", applies=autocasts_decoding, declared_in="autocast_dtypes")
def autocast_decoding(subject: Subject) -> Worst:
    """Under autocast, step-by-step decoding reproduces the parallel forward pass."""
    worst = Worst("relative distance between decoding and the parallel forward", limit=0.0)
    for dtype in precisions(subject):
        module = subject.build()
        inputs = subject.draw(module, 19)
        with torch.no_grad(), autocast(subject, dtype):
            decoded, trained = decode(module, inputs, [1] * 19), inputs.run(module)
        worst.add(distance(decoded, trained), f"{_name(dtype)}, n=19", limit=max(near(dtype), subject.decode_tolerance))
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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
