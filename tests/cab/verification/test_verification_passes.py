"""Attentions without defects, unlike this project's own, pass every check in every pattern they are made for."""

from __future__ import annotations

import pytest

from tests.cab.verification import broken, broken_causal, sound, sound_learning
from tests.cab.verification.test_verification_catches import failures

PLAIN = [
    (broken.Softmax, "NS", "n^2"),
    (broken_causal.CausalSoftmax, "CS", "n^2"),
    (broken.RandomFeatures, "NS", "n"),
    (sound.PlainAverage, "NS", "n"),
    (sound.PlainAverage, "CS", "n"),
    (sound.PlainCross, "NC", "n^2"),
    (sound.PlainCross, "CC", "n^2"),
    (sound.FixedWidth, "CS", "n log n"),
    (sound.InsideBfloat16, "CS", "n^2"),
    (sound.CachedAverage, "CS", "n"),
]
LEARNING = [
    (cls, pattern, "n^2")
    for cls in (
        sound_learning.Gated,
        sound_learning.Sharpened,
        sound_learning.Clustered,
        sound_learning.Drawn,
        sound_learning.Deep,
    )
    for pattern in ("NS", "CS", "NC", "CC")
]
CASES = pytest.mark.parametrize(
    ("cls", "pattern", "complexity"),
    PLAIN + LEARNING,
    ids=lambda value: value.__name__ if isinstance(value, type) else value,
)


@CASES
def test_sound_attention_passes_quickly(cls, pattern, complexity):
    assert failures(cls, pattern, complexity=complexity) == {}


@pytest.mark.thorough
@CASES
def test_sound_attention_passes_in_full(cls, pattern, complexity):
    assert failures(cls, pattern, quick=False, complexity=complexity) == {}
