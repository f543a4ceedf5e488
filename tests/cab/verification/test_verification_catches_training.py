"""Defects that show in training mode alone, beyond some length or batch, or in what a call leaves, are caught."""

from __future__ import annotations

import pytest

from tests.cab.verification import broken_long as long, broken_training as broken
from tests.cab.verification.test_verification_catches import failures

IN_TRAINING = [
    (broken.FutureMeanInTraining, "CS", "lookahead_in_training"),
    (broken.LargestToComeInTraining, "CC", "lookahead_in_training"),
    (broken.PaddedShareInTraining, "NS", "padded_in_training_right padded_in_training_left"),
    (broken.PaddedMeanInTraining, "NC", "padded_in_training_right padded_in_training_left"),
    (broken.OtherRowsInTraining, "NS", "rows_in_training"),
    (broken.LargestRowInTraining, "CC", "rows_in_training"),
    (broken.DetachedInTraining, "NS", "gradient_is_derivative fast_is_reference"),
    (broken.DetachedUnderMask, "CS", "gradient_is_derivative fast_is_reference"),
    (broken.DropoutNotRescaled, "NS", "dropout_mean"),
    (broken.DropoutOutputNotRescaled, "CS", "dropout_mean"),
    (broken.DropoutOfATenth, "NC", "dropout_rate"),
    (broken.DropoutOfHalfTheRate, "CS", "dropout_rate"),
]
LEFT_BEHIND = [
    (broken.SeedsInTraining, "NS", "generators_untouched"),
    (broken.DrawsInEvaluation, "CS", "generators_untouched"),
    (broken.DrawsFromNumpy, "NC", "generators_untouched"),
    (broken.FeaturesOnClass, "NS", "modules_apart"),
    (broken.FeaturesByWidth, "CS", "modules_apart"),
    (broken.LastModuleWins, "NC", "modules_apart"),
    (broken.RemembersBatch, "CS", "calls_leave_nothing"),
    (broken.RemembersLargest, "NS", "calls_leave_nothing"),
    (broken.AddsToState, "CS", "decode_keeps_state"),
    (broken.RenamesInState, "CS", "decode_keeps_state"),
    (broken.UnusedParameter, "NS", "parameters_learn"),
    (broken.RoundedParameter, "CC", "parameters_learn"),
    (broken.QueryIgnored, "NC", "each_input_is_used"),
    (broken.ValueIgnored, "CC", "each_input_is_used"),
    (broken.KeyIgnored, "NC", "each_input_is_used"),
    (broken.MaskInPlace, "NC", "inputs_untouched"),
    (broken.MaskEmptied, "CC", "inputs_untouched"),
    (broken.ReturnsDouble, "NS", "output_type"),
    (broken.StepReturnsHalf, "CS", "output_type"),
    (long.BorderLeak, "CS", "lookahead_gradient lookahead_perturbation"),
    (long.LongestSoFar, "NS", "lengths_in_turn"),
    (long.KeepsPositions, "NC", "lengths_in_turn"),
    (long.LargeBatchMixed, "NS", "batch_size"),
    (long.HugeBatchMixed, "NC", "batch_size"),
]
BEYOND = [
    (long.BorderLeak77, "CS", "lookahead_perturbation"),
    (long.BorderLeak191, "CS", "lookahead_gradient"),
    (long.BorderLeak350, "CS", "lookahead_long"),
    (long.BorderLeak1000, "CS", "lookahead_long"),
    (long.BorderLeak1536, "CS", "lookahead_long"),
    (long.NoMaskBeyond3000, "CS", "lookahead_long lookahead_length"),
    (long.NoMaskBeyond400, "CS", "lookahead_long"),
    (long.PaddingForgottenBeyond300, "NS", "padded_left padded_in_training_inside"),
    (long.PaddingForgottenBeyond3500, "NS", "padded_right"),
    (long.CacheOf500, "CS", "decode_steps"),
    (long.CacheOf3900, "CS", "decode_after_prefill"),
    (long.NumbersLostBeyond2500, "NS", "any_length"),
    (long.NumbersLostBeyond4100, "CS", "any_length"),
    (long.RowsMixedBeyond900, "NS", "batch_size rows_independent"),
    (long.RandomBeyond800, "NS", "eval_repeatable"),
    (long.DetachedBeyond1000, "NS", "gradient_is_derivative"),
]
NAMES = {"ids": lambda value: value.__name__ if isinstance(value, type) else ""}


@pytest.mark.parametrize(("cls", "pattern", "named"), IN_TRAINING + LEFT_BEHIND, **NAMES)
def test_defect_is_caught_quickly(cls, pattern, named):
    assert set(failures(cls, pattern, named.split())) == set(named.split())


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "pattern", "named"), BEYOND, **NAMES)
def test_defect_beyond_some_length_is_caught(cls, pattern, named):
    assert set(failures(cls, pattern, named.split(), quick=False)) == set(named.split())


@pytest.mark.parametrize("cls", [long.QuadraticInEvaluation, long.QuadraticInTraining], **NAMES)
def test_quadratic_memory_in_one_mode_is_caught(cls):
    assert "memory_growth" in failures(cls, "NS", ["memory_growth"], quick=False, complexity="n")
