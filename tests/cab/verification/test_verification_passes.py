"""Attentions without defects, unlike this project's own, pass every check in every pattern they are made for."""

from __future__ import annotations

import pytest

from tests.helpers.verification import mutations, sound, sound_learning
from tests.helpers.verification.mutations import failures

PLAIN = [
    (mutations.Weighted, "NS", "n^2"),
    (mutations.Weighted, "CS", "n^2"),
    (sound.PlainAverage, "NS", "n"),
    (sound.PlainAverage, "CS", "n"),
    (sound.PlainCross, "NC", "n^2"),
    (sound.PlainCross, "CC", "n^2"),
    (sound.FixedWidth, "CS", "n"),
    (sound.InsideBfloat16, "CS", "n^2"),
    (sound.CachedAverage, "CS", "n"),
]
CLASSES = (sound_learning.Gated, sound_learning.Sharpened, sound_learning.Clustered, sound_learning.Deep)
LEARNING = [(cls, pattern, "n^2") for cls in CLASSES for pattern in ("NS", "CS", "NC", "CC")]
"""What is long in the whole suite they share with the plain ones."""


def cases(chosen):
    ids = [f"{cls.__name__}-{pattern}" for cls, pattern, _ in chosen]
    return pytest.mark.parametrize(("cls", "pattern", "complexity"), chosen, ids=ids)


SHARED = ("PlainCross", "CachedAverage")
"""Classes that stand for all in the quick suite of `make test`, each in its first pattern."""


@cases([next(case for case in PLAIN if case[0].__name__ == name) for name in SHARED])
def test_sound_attention_passes_quickly(cls, pattern, complexity):
    assert failures(cls, pattern, complexity=complexity) == {}


@pytest.mark.parametrize("cls", [sound_learning.Gated, sound_learning.Sharpened, sound_learning.Clustered])
def test_sound_losses_and_buffers_pass(cls):
    assert failures(cls, "CS", ["learning"]) == {}


@pytest.mark.slow
@cases(LEARNING)
def test_sound_losses_and_buffers_pass_in_every_pattern(cls, pattern, complexity):
    assert failures(cls, pattern, complexity=complexity) == {}


@pytest.mark.slow
@cases(PLAIN)
def test_sound_attention_passes_in_full(cls, pattern, complexity):
    assert failures(cls, pattern, quick=False, complexity=complexity, long=mutations.MEDIUM) == {}
