"""Every deliberately broken attention is caught by the checks that name its defect."""

from __future__ import annotations

import pytest

from cab import Pattern
from cab.registry.registries import ATTENTIONS
from cab.verification import run_checks, select_checks
from cab.verification.subject import LONG, Subject
from tests.cab.verification import broken, broken_causal, broken_cross

# Class and the checks that name its defect.
CAUSAL = [
    (broken_causal.ForgottenMask, "lookahead_gradient lookahead_perturbation"),
    (broken_causal.MaskDroppedByDropout, "lookahead_gradient"),
    (broken_causal.FaintLeak, "lookahead_gradient lookahead_perturbation"),
    (broken_causal.LengthFactor, "lookahead_length"),
    (broken_causal.GlobalStabiliser, "lookahead_gradient lookahead_perturbation"),
    (broken_causal.NoRunningSum, "context_is_used"),
    (broken_causal.OwnBlockSummary, "lookahead_gradient lookahead_perturbation"),
    (broken_causal.ChunkState, "lookahead_gradient lookahead_perturbation"),
    (broken_causal.CircularConvolution, "lookahead_gradient lookahead_perturbation"),
    (broken_causal.StateIgnoresPadding, "decode_padded_left decode_padded_inside"),
    (broken_causal.PrefillForgetsState, "decode_after_prefill"),
    (broken_causal.StateOnModule, "decode_reordered"),
    (broken_causal.StepDropsLastToken, "decode_steps"),
]
NONCAUSAL = [
    (broken.ForgottenPadding, "padded_right padded_left padded_inside"),
    (broken.PaddingInDenominator, "padded_right padded_left padded_inside"),
    (broken.MaskTiledByHead, "padded_right padded_left padded_inside padded_row"),
    (broken.OutOfRangeAndPadding, "padded_right padded_left padding_of_nothing"),
    (broken.PaddingByMultiplication, "padding_poison_right padding_poison_left padding_poison_inside"),
    (broken.EmptyMaskCounts, "padding_of_nothing"),
    (broken.BatchScaledInverse, "rows_independent rows_gradient batch_size"),
    (broken.CenteredOverBatch, "rows_independent rows_gradient batch_size"),
    (broken.RedrawnInEval, "eval_repeatable"),
    (broken.FeaturesNotSaved, "state_dict_complete"),
    (broken.DropoutInEval, "eval_repeatable"),
    (broken.OtherGenerator, "same_seed"),
    (broken.RunningMaximum, "train_then_eval forward_keeps_state"),
    (broken.ScalesInPlace, "inputs_untouched"),
    (broken.FailsAtLengthOne, "length_one"),
    (broken.NoMaximum, "finite_gradients"),
    (broken.DetachedKeys, "gradient_is_derivative"),
    (broken.FastIsNotReference, "fast_is_reference"),
    (broken.ScaledTwice, "softmax_limit"),
    (broken.OverflowsInHalf, "autocast_output"),
    (broken.WantsFloat32, "autocast_output"),
    (broken.WantsContiguous, "strided_inputs"),
    (broken.ManyParameters, "parameter_budget"),
]
CROSS = [
    (broken_cross.QueriesSeeEachOther, "CC", "lookahead_gradient lookahead_perturbation"),
    (broken_cross.QueryStabiliserOverTargets, "CC", "lookahead_gradient lookahead_perturbation"),
    (broken_cross.SharedScale, "CC", "lookahead_length"),
    (broken_cross.SourceMaskLostInDecoding, "CC", "decode_padded_right decode_padded_left decode_padded_inside"),
    (broken_cross.SourceIgnored, "NC", "context_is_used"),
    (broken_cross.OneTensorAlone, "NC", "same_source"),
    (broken.ForgottenPadding, "NC", "padded_right padded_left padded_inside"),
    (broken.MaskTiledByHead, "CC", "padded_right padded_left padded_inside padded_row"),
    (broken.PaddingInDenominator, "NC", "padded_right padded_left padded_inside"),
]


def failures(cls, pattern, checks=None, *, quick=True, complexity="n^2", is_registered=False, long=LONG):
    """Details of the checks that failed; the quick form without any measurement of time by default."""
    told = {"complexity": complexity, "is_registered": is_registered, "long": (long,)}
    subject = Subject(cls.__name__, cls, Pattern.parse(pattern), **told)
    results = list(run_checks(subject, select_checks(checks, quick=quick, is_timed=False)))
    assert results
    return {result.check: result.detail for result in results if not result.passed}


@pytest.mark.parametrize(
    ("cls", "pattern", "named"),
    [(cls, "CS", named) for cls, named in CAUSAL] + [(cls, "NS", named) for cls, named in NONCAUSAL] + CROSS,
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_defect_is_caught_and_named(cls, pattern, named):
    assert set(failures(cls, pattern, named.split())) == set(named.split())


def test_choice_of_queries_that_sees_the_future_has_no_gradient():
    """Informer's masked form: which queries are computed depends on all of them."""
    subject = Subject("informer", ATTENTIONS.get("probsparse").cls, Pattern.CS, {"factor": 2}, is_registered=True)
    checks = select_checks(["lookahead_gradient", "lookahead_perturbation"], quick=True)
    assert [result.check for result in run_checks(subject, checks) if not result.passed] == ["lookahead_perturbation"]


def test_length_that_fails_is_named():
    failed = failures(broken.NeedsWholeBlocks, "NS", ["lengths"])
    assert failed["any_length"].startswith("raised RuntimeError: n=17: RuntimeError: unflatten")


def test_quadratic_memory_that_claims_to_be_linear():
    assert set(failures(broken.QuadraticMemory, "NS", ["growth"], quick=False, complexity="n")) == {"memory_growth"}
    assert not failures(broken.QuadraticMemory, "NS", ["growth"], quick=False, complexity="n^2")


@pytest.mark.parametrize("pattern", [Pattern.NS, Pattern.NC])
def test_module_that_checks_nothing(pattern):
    failed = failures(broken.TakesAnything, pattern, ["contract"], complexity="1", is_registered=True)
    assert {"wrong_inputs", "wrong_options"} <= set(failed)


@pytest.mark.slow
def test_graph_break_is_found_on_demand():
    assert set(failures(broken.LooksAtANumber, "NS", ["compile"], quick=False)) == {"compile_graph_breaks"}
    assert failures(broken.Softmax, "NS", ["compile"], quick=False) == {}
