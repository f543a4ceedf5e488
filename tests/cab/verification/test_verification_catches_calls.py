"""Defects of modes, calls, gradients, precision, real sizes, context and decoding states are caught and named."""

from __future__ import annotations

import pytest

from tests.cab.verification import broken_calls as broken, broken_decoding as decoding
from tests.cab.verification.test_verification_catches import failures

QUICK = [
    (broken.ScaledInEvaluation, "NS", "training_is_evaluation"),
    (broken.KeepsTable, "NC", "inference_mode"),
    (broken.SplitsByThreads, "NS", "several_threads"),
    (broken.CountsCalls, "CS", "no_counters"),
    (broken.CountsOnClass, "NS", "no_counters"),
    (broken.ChangesAfterFiftyCalls, "NS", "many_calls"),
    (broken.RemembersTraining, "NS", "many_calls no_counters"),
    (broken.TypeOfDefault, "CC", "default_dtype"),
    (broken.GradientInPlace, "NS", "gradient_of_residual"),
    (broken.SavedOutsideContext, "NS", "gradient_of_two_calls"),
    (broken.GradientOfEightRows, "NC", "gradient_of_many_rows"),
    (broken.UnusedWhenShort, "CS", "parameters_in_every_batch"),
    (broken.HalfGradientUnderAutocast, "NS", "autocast_gradient"),
    (broken.NoMaskUnderAutocast, "CS", "autocast_lookahead"),
    (broken.PositionsInType, "NS", "module_in_bfloat16"),
    (broken.NoMaskInWideHeads, "CS", "model_sizes"),
    (broken.RowsMixedInManyHeads, "NC", "model_sizes"),
    (broken.DetachedInOddHeads, "CS", "model_sizes_gradient"),
    (broken.SingleTokenLost, "NC", "padded_single_token"),
    (broken.DropoutSharedByRows, "NS", "dropout_differs"),
    (broken.DropoutSharedByPairs, "CS", "dropout_differs"),
    (broken.DropoutOfFirstCall, "NS", "dropout_differs"),
    (broken.DropoutSharedByHeads, "NS", "dropout_per_head"),
    (broken.DropoutSharedByPositions, "NC", "dropout_per_head"),
    (broken.PredecessorUnread, "CS", "context_map"),
    (broken.WindowOf400, "CS", "context_map"),
    (broken.OddTokensUnreadBeyond64, "CS", "context_map"),
    (broken.FirstKeysOnly, "NC", "source_map"),
    (decoding.WritesIntoState, "CS", "prefill_keeps_state"),
    (decoding.SharedCapacity, "CS", "decode_branches"),
    (decoding.StateWithoutRows, "CS", "state_has_rows"),
    (decoding.PaddingOnModule, "CS", "decode_reordered"),
    (decoding.GrowingState, "CS", "step_growth"),
    (decoding.QuadraticStep, "CS", "step_growth"),
]
FULL = [
    (broken.NoMaskInLongHeads, "CS", "lookahead_long"),
    (broken.WindowOf2000, "CS", "context_map"),
    (decoding.StopsAfter1500, "CS", "decode_steps"),
]
NAMES = {"ids": lambda value: value.__name__ if isinstance(value, type) else ""}


@pytest.mark.parametrize(("cls", "pattern", "named"), QUICK, **NAMES)
def test_defect_is_caught(cls, pattern, named):
    assert set(failures(cls, pattern, named.split())) == set(named.split())


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "pattern", "named"), FULL, **NAMES)
def test_defect_in_long_sequences_is_caught(cls, pattern, named):
    assert set(failures(cls, pattern, named.split(), quick=False)) == set(named.split())


def test_quadratic_memory_with_padding_is_caught():
    detail = failures(broken.QuadraticWithPadding, "NS", ["memory_growth"], quick=False, complexity="n")
    assert "with padding" in detail["memory_growth"]
