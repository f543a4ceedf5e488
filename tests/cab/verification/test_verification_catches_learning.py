"""Defects in losses, learning buffers, gates, depth and rules are caught, by the checks that name them."""

from __future__ import annotations

import pytest

from tests.cab.verification import broken_learning as broken
from tests.cab.verification.test_verification_catches import failures

PLANTED = [
    (broken.LossOfAllKeys, "CS", "loss_lookahead"),
    (broken.LossComparesWithLater, "CS", "loss_lookahead"),
    (broken.LossComparesWithLater, "CC", "loss_lookahead"),
    (broken.LossCountsPadding, "NS", "loss_padding"),
    (broken.LossCountsPadding, "CC", "loss_padding"),
    (broken.LossOfPaddedKeys, "NC", "loss_padding"),
    (broken.LossInEvaluation, "NS", "loss_once"),
    (broken.LossGivenTwice, "CS", "loss_once"),
    (broken.LossTwiceRecomputed, "NC", "loss_once"),
    (broken.LossOfInputs, "NS", "loss_number"),
    (broken.LossOfDetachedInputs, "CC", "loss_number"),
    (broken.BufferInForward, "CS", "forward_keeps_state statistics_once"),
    (broken.BufferInBackward, "NS", "forward_keeps_state"),
    (broken.CountsCalls, "NC", "forward_keeps_state"),
    (broken.GathersTwice, "NS", "statistics_once"),
    (broken.DividesByCalls, "CC", "statistics_once"),
    (broken.GathersInEvaluation, "NS", "statistics_once"),
    (broken.LearnsUnsaved, "NC", "statistics_once"),
    (broken.StatisticsOfPadding, "NC", "statistics_padding"),
    (broken.StatisticsOfMeans, "CS", "statistics_padding"),
    (broken.GateOverPadding, "NS", "padded_right padded_left padded_inside"),
    (broken.GateCountsTokens, "NC", "padded_right padded_left padded_inside"),
    (broken.GateSeesAll, "CS", "lookahead_gradient lookahead_perturbation"),
    (broken.GateSeesAll, "CC", "lookahead_gradient lookahead_perturbation"),
    (broken.StrengthOfNext, "CS", "lookahead_gradient lookahead_perturbation"),
    (broken.GateLostInDecoding, "CS", "decode_steps decode_after_prefill"),
    (broken.StrengthOfFirst, "CS", "decode_after_prefill"),
    (broken.RuleOfNobody, "NS", "param_group_overrides"),
    (broken.RuleOfModule, "CS", "param_group_overrides"),
    (broken.RuleBelowZero, "NC", "param_group_overrides"),
]


@pytest.mark.parametrize(
    ("cls", "pattern", "named"), PLANTED, ids=lambda value: value.__name__ if isinstance(value, type) else ""
)
def test_defect_is_caught_and_named(cls, pattern, named):
    assert set(failures(cls, pattern, named.split())) == set(named.split())


@pytest.mark.parametrize(
    ("cls", "pattern", "layer"), [(broken.LastSeesAll, "CS", 3), (broken.FirstIgnoresPadding, "NS", 0)]
)
def test_defect_in_one_layer_position_is_caught(cls, pattern, layer):
    """A single layer passes the same checks."""
    assert (
        f"at layer {layer} of 4,"
        in failures(cls, pattern, ["every_layer_position"], quick=False)["every_layer_position"]
    )
    assert not failures(cls, pattern, ["lookahead_gradient", "padded_left"])
