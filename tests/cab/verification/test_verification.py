"""The suite itself: what it accepts, what it measures, what it reports."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
import torch
from torch import nn

from cab import Pattern, UserError
from cab.claims import Claims
from cab.registry.registries import ATTENTIONS
from cab.verification import select_checks, subject_of, verify_attention
from cab.verification.causality import BORDERS, ODD_LENGTHS
from cab.verification.check import CHECKS, Worst
from cab.verification.compare import difference, distance, error_at, rounding
from cab.verification.growth import peak_bytes
from cab.verification.inputs import padding_masks
from cab.verification.subject import Subject
from cab.verification.suite import ON_DEMAND, applicable
from tests.helpers.verification import sound


def test_results_say_what_was_measured_and_expected():
    results = verify_attention("vanilla", "CS", checks=["causality", "same_seed"], quick=True)
    assert [r.check for r in results] == [
        "same_seed",
        "lookahead_gradient",
        "lookahead_perturbation",
        "lookahead_in_training",
        "lookahead_length",
    ]
    for result in results:
        assert (result.attention, result.pattern, result.passed) == ("vanilla", "CS", True)
        assert any(character.isdigit() for character in result.detail)
        assert "; longest n=" in result.detail
        assert result.longest >= 33


def test_every_applicable_check_runs_and_no_other():
    plain, cached = Subject("a", sound.PlainAverage, Pattern.NS), Subject("b", sound.CachedAverage, Pattern.CS)
    names = {check.name for check in applicable(select_checks(quick=True), plain)}
    assert not any(name.startswith(("lookahead", "decode", "compile_")) for name in names)
    assert "wrong_inputs" not in names  # a plain module promises forward alone
    assert {"padded_right", "length_one", "same_seed"} <= names
    assert "memory_growth" not in names  # too slow for the quick form
    assert "decode_steps" in {check.name for check in applicable(select_checks(quick=True), cached)}


def test_random_state_is_left_alone():
    torch.manual_seed(3)
    random.seed(3)
    expected = torch.rand(2), random.random()
    torch.manual_seed(3)
    random.seed(3)
    verify_attention("vanilla", "NS", checks=["padded_right", "same_seed"], quick=True)
    assert torch.equal(torch.rand(2), expected[0])
    assert random.random() == expected[1]


def test_results_do_not_depend_on_other_checks():
    alone = verify_attention("abc", "CS", checks=["padded_left"], quick=True)
    assert alone[0] in verify_attention("abc", "CS", checks=["padded_right", "padded_left"], quick=True)


def test_options_reach_the_class():
    subject = subject_of("abc", "NS", options={"num_landmarks": 3})
    assert subject.build().num_landmarks == 3
    with pytest.raises(UserError, match="no option 'landmarks'"):
        verify_attention("abc", "NS", options={"landmarks": 3})


def test_class_that_cannot_be_built():
    class Needy(nn.Module):
        def __init__(self, pattern, window):  # noqa: ARG002
            super().__init__()

    class Unmeasured(nn.Module):
        def __init__(self, width=16):  # noqa: ARG002
            super().__init__()

    with pytest.raises(UserError, match=r"cannot build Needy for pattern NS from pattern: TypeError.*'window'"):
        verify_attention(Needy, "NS")
    with pytest.raises(UserError, match="the width of Unmeasured is unknown"):
        verify_attention(Unmeasured, "NS")


def test_checks_have_names_groups_and_words():
    for name, check in CHECKS.items():
        assert check.name == name == name.lower()
        assert check.summary.endswith(".")
        assert len(check.summary) < 130
    assert {check.group for check in select_checks(None)} == {check.group for check in CHECKS.values()} - {*ON_DEMAND}
    assert [check.name for check in select_checks(["same_seed", "length_one"])] == ["same_seed", "length_one"]


def test_worst_is_measured_in_limits():
    worst = Worst("error", limit=1e-4)
    worst.add(5e-5, "a")
    worst.add(0.01, "b", limit=0.1)
    assert worst.passed
    assert worst.where == "a"
    worst.add(float("nan"), "c")
    assert not worst.passed
    assert worst.detail == "error inf > 0.0001 at c (worst of 3)"


def test_error_is_relative_to_the_place_and_to_the_typical_size():
    expected = torch.tensor([[1.0, -1.0], [100.0, 100.0], [0.0, 0.0]])
    errors = error_at(expected + 0.1, expected)
    torch.testing.assert_close(errors.float(), torch.tensor([0.1 / 2, 0.1 / 101, 0.1]))
    assert difference(expected, expected) == 0.0
    assert difference(torch.tensor([[torch.nan, 0.0]]), torch.zeros(1, 2)) == torch.inf
    assert difference(torch.zeros(0, 4), torch.zeros(0, 4)) == 0.0
    assert distance(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0])) == pytest.approx(0.2)
    assert distance(torch.tensor([torch.inf]), torch.tensor([1.0])) == torch.inf


def test_rounding_sees_the_coarsest_type_inside():
    for cls, dtype in ((sound.PlainAverage, torch.float32), (sound.InsideBfloat16, torch.bfloat16)):
        subject = Subject("any", cls, Pattern.CS)
        module = subject.build()
        assert rounding(module, subject.draw(module, 3)) == torch.finfo(dtype).eps


def test_borders_of_usual_blocks_are_among_those_looked_at():
    usual = [2**k for k in range(1, 12)] + [3 * 2**k for k in range(10)] + [100, 300, 500, 1000, 1100, 1500, 2000]
    for block in usual:
        assert block <= max(ODD_LENGTHS) // 2 or any(border % block == 0 for border in BORDERS)


@pytest.mark.parametrize("length", [1, 2, 17])
def test_padding_layouts(length):
    x = torch.zeros(5, length, 1)
    for layout in ("right", "left", "inside"):
        mask = padding_masks(layout, x)
        assert mask.dtype is torch.bool
        assert not mask[0].any()
        assert not mask.all(dim=1).any()
        if length == 17:
            assert mask.sum(1).unique().numel() == 5
    assert padding_masks("row", x).all(dim=1).tolist() == [False, True, False, False, False]


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
