"""Attentions that choose blocks or hash tokens pass on any processor, however it rounds its sums."""

from __future__ import annotations

import zlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cab.verification import near_ties, run_checks, select_checks, subject_of

CHECKS = ["batch_size", "padded_left", "lookahead_length"]
MULTIPLICATIONS = ("mm", "bmm", "addmm", "baddbmm")


class OtherRounding(TorchDispatchMode):
    """Moves products of float32 matrices by up to one unit in the last place, differently for each shape."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in MULTIPLICATIONS or output.dtype != torch.float32:
            return output
        shapes = [tuple(x.shape) for x in args if isinstance(x, torch.Tensor)]
        generator = torch.Generator().manual_seed(zlib.crc32(repr((name, shapes)).encode()))
        steps = torch.randint(-1, 2, output.shape, generator=generator, dtype=torch.int8)
        return output * (1.0 + 2.0**-23 * steps)


def failed(name: str, pattern: str) -> set[str]:
    with OtherRounding():
        results = list(run_checks(subject_of(name, pattern, options={}), select_checks(CHECKS)))
    return {result.check for result in results if not result.passed}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "pattern"), [("nsa", "CS"), ("yoso", "NS")])
def test_near_ties_are_no_defect(name: str, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed(name, pattern) == set()
    monkeypatch.setattr(near_ties, "RARE", 0.0)
    assert failed(name, pattern)
