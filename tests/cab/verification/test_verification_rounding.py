"""Attentions that choose blocks or hash tokens pass on any processor, however it rounds its sums."""

import zlib
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cab.verification import relation, run_checks, select_checks, subject_of
from tests.cab.verification.planted.mutations import MEDIUM, Weighted, failures, variant

pytestmark = pytest.mark.slow

CHECKS = {
    "NS": ["batch_size", "padded_right", "padded_in_training_inside"],
    "CS": ["batch_size", "padded_left", "lookahead_length"],
}
MULTIPLICATIONS = ("mm", "bmm", "addmm", "baddbmm")


class OtherRounding(TorchDispatchMode):
    """Moves products of float32 matrices by up to eight units in the last place, differently for each shape."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in MULTIPLICATIONS or output.dtype != torch.float32:
            return output
        shapes = [tuple(x.shape) for x in args if isinstance(x, torch.Tensor)]
        generator = torch.Generator().manual_seed(zlib.crc32(repr((name, shapes)).encode()))
        steps = torch.randint(-8, 9, output.shape, generator=generator, dtype=torch.int8)
        return output * (1.0 + 2.0**-23 * steps)


@pytest.mark.parametrize(("name", "pattern"), [("nsa", "CS"), ("yoso", "NS")])
def test_near_ties_are_no_defect(name, pattern, monkeypatch):
    subject, check = subject_of(name, pattern, options={}), select_checks(["padded_left"])
    with OtherRounding():
        assert all(result.passed for result in run_checks(subject, check))
        monkeypatch.setattr(relation, "RARE", 0.0)
        assert not any(result.passed for result in run_checks(subject, check))


def scaled_by_size(every: int, *dtypes: torch.dtype) -> type:
    """Return an attention in which one target in ``every`` is scaled by the size of the call, in these dtypes."""

    def attend(call: Any) -> torch.Tensor:
        scaled = torch.arange(call.n) % every == every - 1
        return call.y * (1.0 + 1e-3 * (call.q.numel() % 7) * scaled * (call.q.dtype in dtypes))[:, None]

    return variant(Weighted, attend=attend)


@pytest.mark.parametrize("pattern", ["NS", "CS"])
@pytest.mark.parametrize(
    ("cls", "is_defect"),
    [
        (scaled_by_size(300, torch.float32), False),  # as if a few targets chose between scores that are nearly equal
        (scaled_by_size(300, torch.float32, torch.float64), True),
        (scaled_by_size(20, torch.float32), True),  # as if summed badly: too often for a choice
    ],
)
def test_only_rare_errors_of_float32_alone_are_no_defect(cls, is_defect, pattern):
    failed = failures(cls, pattern, CHECKS[pattern], quick=False, long=MEDIUM)
    assert failed.keys() == set(CHECKS[pattern] if is_defect else ())
