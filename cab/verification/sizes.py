"""Size checks: the main properties at widths, head counts and head dimensions of real models."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from cab.training import auxiliary_loss
from cab.verification.causality import gradient_leak, replacement_leak
from cab.verification.check import Worst, check
from cab.verification.compare import LEAK, ROUNDING, difference, limit_for
from cab.verification.decoding import decode, prefills
from cab.verification.inputs import Inputs, Module, row_alone
from cab.verification.numerics import SLOPE, SLOPE_FLOAT32, has_exact_gradient, slope_error
from cab.verification.subject import Subject, rounding

SIZES = ((768, 12), (128, 1), (64, 16), (21, 3))
"""Widths and head counts: head dimensions of 64, 128, 4 and 7."""

LENGTH = 70
CUTS = (0, 15, 34, 63, 68)
"""Positions after which all tokens are replaced."""


@check("sizes")
def model_sizes(subject: Subject) -> Worst:
    """At widths of 21 to 768 with 1 to 16 heads, batches, padding, causality, decoding and training mode are right."""
    worst = Worst("relative error", limit=ROUNDING)
    for module, size in _modules(subject):
        inputs = subject.pad(subject.draw(module, LENGTH, batch=3), "inside")
        limit = limit_for(rounding(module, inputs), ROUNDING)
        with torch.no_grad():
            together = inputs.run(module)
            for row, real in enumerate(inputs.real):
                alone = row_alone(inputs, row)
                assert alone is not None, "this layout leaves tokens in every row"
                error = difference(together[row, real], alone.run(module)[0])
                worst.add(error, f"{size}, padded row {row} in a batch", limit=limit)
        first = row_alone(inputs, 0)
        assert first is not None
        _add_causality(worst, subject, module, first, size, limit)
        if not subject.is_random_in_training and not getattr(subject.cls, "differs_in_training", False):
            with torch.no_grad():
                error = difference(first.run(module.train())[0], together[0])
            worst.add(error, f"{size}, training mode", limit=limit)
            auxiliary_loss(module)
    return worst


@check("sizes", applies=has_exact_gradient, declared_in="has_exact_gradient")
def model_sizes_gradient(subject: Subject) -> Worst:
    """At widths of 21 to 768 with 1 to 16 heads, gradients agree with central differences."""
    worst = Worst("relative error between gradient and central differences", limit=SLOPE)
    for module, size in _modules(subject, SIZES if subject.long else SIZES[1:]):
        inputs = subject.draw(module, LENGTH, batch=1)
        try:
            module, inputs = module.double(), inputs.double()
            errors, limit = [slope_error(module, inputs, 1e-6)], SLOPE
            if errors[0] > SLOPE:  # parts may compute in float32, which a larger step resolves
                errors.append(slope_error(module, inputs, 1e-3))
        except Exception:  # float64 is optional
            module, inputs = module.float(), inputs.float()
            errors, limit = [slope_error(module, inputs, step) for step in (1e-2, 1e-3)], SLOPE_FLOAT32
        noise = rounding(module, inputs)
        worst.add(min(errors), size, limit=limit if noise < 1e-6 else 1e3 * noise)
    return worst


def _add_causality(worst: Worst, subject: Subject, module: Module, inputs: Inputs, size: str, limit: float) -> None:
    """Compare one row in a causal pattern with replaced tokens, with its decoding, and look at its gradients."""
    if not subject.pattern.is_causal:
        return
    leak, where = replacement_leak(module, inputs, torch.tensor(CUTS), 1.0)
    worst.add(leak, f"{size}, {where}", limit=limit_for(limit if limit > ROUNDING else 0.0, LEAK), finding=where)
    leak, where = gradient_leak(module, inputs, torch.tensor(CUTS[:3]))
    worst.add(leak, f"{size}, gradient, {where}", limit=LEAK, finding=where)
    if not subject.decodes:
        return
    prompt = LENGTH - 8 if prefills(subject) else 0
    start = inputs if prompt else inputs.prefix(20)
    chunks = ([prompt] if prompt else []) + [1] * (start.query.shape[1] - prompt)
    with torch.no_grad():
        error = difference(decode(module, start, chunks), start.run(module))
    worst.add(error, f"{size}, decoding", limit=max(limit, subject.decode_tolerance))


def _modules(subject: Subject, sizes: tuple[tuple[int, int], ...] = SIZES) -> Iterator[tuple[Module, str]]:
    """Yield a module of every size; a class may refuse an odd head dimension."""
    for embed_dim, num_heads in sizes:
        try:
            module = subject.build(embed_dim=embed_dim, num_heads=num_heads)
        except ValueError:
            if embed_dim // num_heads % 2 == 0:
                raise
            continue
        yield module, f"width {embed_dim}, heads {num_heads}"
