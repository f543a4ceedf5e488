"""The suite itself: what it accepts, what it measures, what it reports."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from cab import UserError
from cab.claims import Claims
from cab.registry.registries import ATTENTIONS
from cab.verification import verify_attention
from cab.verification.causality import BORDERS, ODD_LENGTHS
from cab.verification.compare import difference, distance, error_at
from cab.verification.growth import peak_bytes


def test_results_do_not_depend_on_other_checks():
    alone = verify_attention("abc", "CS", checks=["padded_left"], quick=True)
    assert alone[0] in verify_attention("abc", "CS", checks=["padded_right", "padded_left"], quick=True)


class Needy(nn.Module):
    def __init__(self, pattern, window):  # noqa: ARG002
        super().__init__()


class Unmeasured(nn.Module):
    def __init__(self, width=16):  # noqa: ARG002
        super().__init__()


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Needy, r"cannot build Needy for pattern NS from pattern: TypeError.*'window'"),
        (Unmeasured, "the width of Unmeasured is unknown"),
    ],
)
def test_class_that_cannot_be_built(cls, message):
    with pytest.raises(UserError, match=message):
        verify_attention(cls, "NS")


def test_error_is_relative_to_the_place_and_to_the_typical_size():
    expected = torch.tensor([[1.0, -1.0], [100.0, 100.0], [0.0, 0.0]])
    errors = error_at(expected + 0.1, expected)
    torch.testing.assert_close(errors.float(), torch.tensor([0.1 / 2, 0.1 / 101, 0.1]))
    assert difference(expected, expected) == 0.0
    assert difference(torch.tensor([[torch.nan, 0.0]]), torch.zeros(1, 2)) == torch.inf
    assert difference(torch.zeros(0, 4), torch.zeros(0, 4)) == 0.0
    assert distance(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.2)
    assert distance(torch.tensor([torch.inf]), torch.tensor([1.0])) == torch.inf


def test_borders_of_usual_blocks_are_among_those_looked_at():
    usual = [2**k for k in range(1, 12)] + [3 * 2**k for k in range(10)] + [100, 300, 500, 1000, 1100, 1500, 2000]
    for block in usual:
        assert block <= max(ODD_LENGTHS) // 2 or any(border % block == 0 for border in BORDERS)


def test_peak_memory_is_exact():
    x = torch.ones(1000, 256)

    def call():
        y = x * 2.0  # 1 MiB less 24 KiB
        del y
        a, b = x + 1.0, x + 2.0
        return (a * b).sum()

    assert peak_bytes(call) == pytest.approx(3 * 1000 * 256 * 4, abs=100)


def test_devices_without_float32_are_refused(monkeypatch):
    """As flash attention on CUDA."""
    entry = ATTENTIONS.get("flash")
    monkeypatch.setattr(entry.cls, "claims", Claims(float32_devices=()))
    with pytest.raises(UserError, match="'flash' does not support float32 on cpu"):
        verify_attention("flash", "NS")


IMPORTS = """
import sys, torch
before = {*sys.modules}
import cab.verification
added = {name.partition(".")[0] for name in {*sys.modules} - before}
print(*sorted(name for name in added - sys.stdlib_module_names if not name.startswith("_sysconfigdata")))
"""


def test_the_suite_needs_only_torch():
    shown = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True).stdout
    assert shown.split() == ["cab"]
