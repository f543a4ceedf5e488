"""Packed sequences: each defect is caught by the checks that name it, and a sound packed form passes them."""

from __future__ import annotations

import pytest

from cab import Pattern
from tests.cab.verification import broken_packed
from tests.cab.verification.test_verification_catches import failures

OUTPUTS, GRADIENTS, BORDERS, PROMPTS = "packed_outputs", "packed_gradients", "packed_borders", "packed_prompts"


@pytest.mark.parametrize(
    ("cls", "pattern", "caught"),
    [
        (broken_packed.NoBorders, "NS", {OUTPUTS, GRADIENTS, BORDERS}),
        (broken_packed.NoBorders, "CC", {OUTPUTS, GRADIENTS, BORDERS}),
        (broken_packed.BorderOffByOne, "CS", {OUTPUTS, GRADIENTS, BORDERS}),
        (broken_packed.BorderOffByOne, "NC", {OUTPUTS, GRADIENTS, BORDERS}),
        (broken_packed.PositionsGoOn, "NS", {OUTPUTS, GRADIENTS}),
        (broken_packed.DetachedShortSequences, "NC", {GRADIENTS}),
        (broken_packed.LossOfEverySequence, "NS", {"packed_loss"}),
        (broken_packed.StateOfThePromptBefore, "CS", {PROMPTS}),
        (broken_packed.EmptyPromptResets, "CS", {PROMPTS}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_defect_is_caught_by_the_checks_that_name_it(cls, pattern, caught):
    assert set(failures(cls, pattern, ["packed"])) == caught


@pytest.mark.parametrize("pattern", list(Pattern))
def test_sound_packed_form_passes(pattern):
    assert failures(broken_packed.PackedSoftmax, pattern, ["packed"], quick=False) == {}
