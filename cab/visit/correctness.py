"""Parts (a) and (b): `cab verify` on the device, and the fast forms there against the readable ones on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cab.attention import Attention
from cab.errors import first_line
from cab.patterns import Pattern
from cab.registry.build import build_attention
from cab.registry.registries import ATTENTIONS
from cab.visit.visit import Visit

WIDTH, HEADS = 64, 4
LENGTHS = (1, 37, 131)
LIMITS = {"float32": 2e-3, "bfloat16": 5e-2}
"""Largest difference allowed, relative to the largest number of the readable form."""

SHORT = ("vanilla", "linear")


def pairs(visit: Visit) -> list[tuple[str, Pattern]]:
    """Every attention and pattern; ordered by pattern, so that what is cut off is no attention as a whole."""
    entries = [entry for entry in ATTENTIONS.load() if entry.name != "none"]
    if visit.short:
        entries = [entry for entry in entries if entry.name in SHORT]
    patterns = (Pattern.CS,) if visit.short else (Pattern.CS, Pattern.NS, Pattern.NC, Pattern.CC)
    return [(entry.name, pattern) for pattern in patterns for entry in entries if pattern in entry.patterns]


def verify(visit: Visit) -> None:
    """The quick form: the checks of group precision hold bfloat16 and float16 to float32, the others float32."""
    from cab.verification import verify_attention
    from cab.verification.suite import runs_in_float32

    for name, pattern in visit.own(pairs(visit)):
        row: dict[str, Any] = {"attention": name, "pattern": str(pattern)}
        if not runs_in_float32(ATTENTIONS.get(name).cls, visit.device):
            visit.write("verify", **row, check="-", passed="-", detail="not in float32 on this device")
            continue
        for found in verify_attention(name, pattern, quick=True, device=visit.device):
            visit.write("verify", **row, check=found.check, passed=found.passed, detail=found.detail)


def agreement(visit: Visit) -> None:
    """Outputs and gradients, eager for all before compiled for as many as there is time for."""
    for form in ("eager", "compiled"):
        for name, pattern in visit.own(pairs(visit)):
            for row in agreements(name, pattern, form, visit):
                visit.write("agreement", attention=name, pattern=str(pattern), form=form, **row)


def agreements(name: str, pattern: Pattern, form: str, visit: Visit) -> Iterator[dict[str, Any]]:
    """One attention at every length, with and without padding; a row for the first error is the last."""
    torch.manual_seed(0)
    dtype = "float32" if visit.device in ATTENTIONS.get(name).cls.float32_devices else visit.low
    readable = build_attention(name, pattern=pattern, embed_dim=WIDTH, num_heads=HEADS).eval()
    fast = copy.deepcopy(readable).to(visit.device)
    readable = readable.double()
    readable.use_reference = readable.reference is not None
    if form == "compiled":
        torch.compiler.reset()
        fast = torch.compile(fast, backend=visit.compiler)  # type: ignore[assignment]
    lengths = LENGTHS[1:] if form == "compiled" or visit.short else LENGTHS
    for length in lengths:
        for is_padded in (False, True):
            facts: dict[str, Any] = {"dtype": dtype, "length": length, "padded": is_padded, "limit": LIMITS[dtype]}
            try:
                inputs = draw(pattern, length, is_padded)
                expected = outputs_and_gradients(readable, inputs, "cpu", torch.float64)
                with torch.autocast(visit.device, torch.bfloat16, enabled=dtype == "bfloat16"):
                    found = outputs_and_gradients(fast, inputs, visit.device, torch.float32)
            except Exception as error:
                yield facts | {"passed": False, "detail": f"{type(error).__name__}: {first_line(error)}"}
                return
            errors = [difference(a, b) for a, b in zip(found, expected, strict=True)]
            facts |= {"output_error": errors[0], "gradient_error": max(errors[1:])}
            yield facts | {"passed": max(errors) <= LIMITS[dtype]}


def draw(pattern: Pattern, length: int, is_padded: bool) -> dict[str, Tensor]:
    """Two rows of query [2, N, D] (and in cross patterns a longer source); the second ends in a third of padding."""
    inputs = {"query": torch.randn(2, length, WIDTH)}
    if pattern.is_cross:
        inputs |= {"key": (source := torch.randn(2, length + 5, WIDTH)), "value": source}
    if is_padded:
        for side in ("query", "key") if pattern.is_cross else ("query",):
            size = inputs[side].shape[1]
            mask = torch.zeros(2, size, dtype=torch.bool)
            mask[1, size - size // 3 :] = True
            inputs[f"{side}_padding_mask"] = mask
    return inputs


def outputs_and_gradients(
    module: Attention, inputs: dict[str, Tensor], device: str, dtype: torch.dtype
) -> list[Tensor]:
    """The output, and the gradients of a fixed sum of it: of the inputs and of all parameters."""
    types = {name: x.dtype if x.dtype is torch.bool else dtype for name, x in inputs.items()}
    given = {name: x.to(device, types[name], copy=True) for name, x in inputs.items()}
    sources = [x.requires_grad_() for x in given.values() if x.dtype is not torch.bool]
    output = module(**given)
    weights = torch.linspace(-1.0, 1.0, output.numel(), device=device, dtype=output.dtype).view_as(output).cos()
    wanted = [*sources, *module.parameters()]
    gradients = torch.autograd.grad(output, wanted, weights, allow_unused=True, materialize_grads=True)
    return [output.detach(), *gradients]


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest, relative to the largest number expected (or to 1, where all are small)."""
    found, expected = (x.detach().to("cpu", torch.float64) for x in (found, expected))
    if not found.isfinite().all():
        return float("inf")
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1.0))
