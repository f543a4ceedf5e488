"""Every deliberately broken attention is caught, by the check that names its defect, and sound ones pass."""

from __future__ import annotations

import pytest

from cab import Pattern
from cab.registry import ATTENTIONS
from cab.verification import run_checks, select_checks, verify_attention
from cab.verification.check import CHECKS
from cab.verification.subject import Subject
from tests.cab.verification import broken, broken_causal, broken_cross, sound

NOT_GROWTH = [group for group in dict.fromkeys(check.group for check in CHECKS.values()) if group != "growth"]
NOT_GROWTH.remove("compile")

# Class, the checks that name its defect, and the groups in which the same defect shows as well.
CAUSAL = [
    (broken_causal.ForgottenMask, "lookahead_gradient lookahead_perturbation", "causality decoding precision"),
    (broken_causal.MaskDroppedByDropout, "lookahead_gradient", ""),
    (broken_causal.FaintLeak, "lookahead_gradient lookahead_perturbation", "causality decoding padding"),
    (broken_causal.LengthFactor, "lookahead_length", "decoding padding"),
    (broken_causal.GlobalStabiliser, "lookahead_gradient lookahead_perturbation", "causality decoding padding"),
    (broken_causal.NoRunningSum, "context_is_used", ""),
    (broken_causal.OwnBlockSummary, "lookahead_gradient lookahead_perturbation", "causality decoding precision"),
    (broken_causal.ChunkState, "lookahead_gradient lookahead_perturbation", "causality decoding precision"),
    (
        broken_causal.CircularConvolution,
        "lookahead_gradient lookahead_perturbation",
        "causality decoding padding precision",
    ),
    (broken_causal.StateIgnoresPadding, "decode_padded", ""),
    (broken_causal.PrefillForgetsState, "decode_after_prefill", "decoding"),
    (broken_causal.StateOnModule, "decode_reordered", "decoding"),
    (broken_causal.StepDropsLastToken, "decode_steps", "decoding precision"),
]
NONCAUSAL = [
    (broken.ForgottenPadding, "padded_right padded_left padded_inside", "precision"),
    (broken.PaddingInDenominator, "padded_right padded_left padded_inside", ""),
    (broken.MaskTiledByHead, "padded_right padded_left padded_inside padded_row", "precision"),
    (broken.OutOfRangeAndPadding, "padded_right padded_left padding_of_nothing", "padding precision"),
    (broken.PaddingByMultiplication, "padding_poison", ""),
    (broken.EmptyMaskCounts, "padding_of_nothing", "padding precision"),
    (broken.BatchScaledInverse, "rows_independent rows_gradient batch_size", "padding"),
    (broken.CentredOverBatch, "rows_independent rows_gradient batch_size", "padding precision"),
    (broken.RedrawnInEval, "eval_repeatable", "contract determinism padding batches numerics"),
    (broken.FeaturesNotSaved, "state_dict_complete", ""),
    (broken.DropoutInEval, "eval_repeatable", "determinism"),
    (broken.OtherGenerator, "same_seed", ""),
    (broken.RunningMaximum, "train_then_eval", ""),
    (broken.ScalesInPlace, "inputs_untouched", "contract batches determinism numerics precision"),
    (broken.FailsAtLengthOne, "length_one", "contract padding batches determinism numerics precision"),
    (broken.NoMaximum, "finite_gradients", "padding precision"),
    (broken.DetachedKeys, "gradient_is_derivative", ""),
    (broken.FastIsNotReference, "fast_is_reference", ""),
    (broken.ScaledTwice, "softmax_limit", ""),
    (broken.OverflowsInHalf, "autocast_output", "padding"),
    (broken.WantsFloat32, "autocast_output", "precision"),
    (broken.WantsContiguous, "strided_inputs", "numerics"),
    (broken.ManyParameters, "parameter_budget", ""),
]


CROSS = [
    (
        broken_cross.QueriesSeeEachOther,
        "CC",
        "lookahead_gradient lookahead_perturbation",
        "causality decoding padding precision",
    ),
    (
        broken_cross.QueryStabiliserOverTargets,
        "CC",
        "lookahead_gradient lookahead_perturbation",
        "causality decoding padding",
    ),
    (broken_cross.SharedScale, "CC", "lookahead_length", "decoding padding"),
    (broken_cross.SourceMaskLostInDecoding, "CC", "decode_padded", ""),
    (broken_cross.SourceIgnored, "NC", "context_is_used", "contract padding"),
    (broken_cross.OneTensorAlone, "NC", "same_source", "padding precision"),
    (broken.ForgottenPadding, "NC", "padded_right padded_left padded_inside", "precision"),
    (broken.MaskTiledByHead, "CC", "padded_right padded_left padded_inside padded_row", "decoding precision"),
    (broken.PaddingInDenominator, "NC", "padded_right padded_left padded_inside", ""),
]


def failures(cls, pattern, checks=NOT_GROWTH, complexity="n^2"):
    results = verify_attention(cls, pattern, checks=checks, complexity=complexity)
    return {result.check: result.detail for result in results if not result.passed}


@pytest.mark.parametrize(
    ("cls", "pattern", "named", "also"),
    [(cls, "CS", *words) for cls, *words in CAUSAL] + [(cls, "NS", *words) for cls, *words in NONCAUSAL] + CROSS,
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_defect_is_caught_and_named(cls, pattern, named, also):
    failed = failures(cls, pattern)
    named, also = set(named.split()), set(also.split())
    assert named <= set(failed)
    strangers = {
        name: detail for name, detail in failed.items() if name not in named and CHECKS[name].group not in also
    }
    assert not strangers


def test_choice_of_queries_that_sees_the_future_has_no_gradient():
    """Informer's masked form: which queries are computed depends on all of them."""
    subject = Subject("informer", ATTENTIONS.get("probsparse").cls, Pattern.CS, {"factor": 2}, is_registered=True)
    failed = {result.check for result in run_checks(subject, select_checks(["causality"])) if not result.passed}
    assert "lookahead_perturbation" in failed
    assert "lookahead_gradient" not in failed


@pytest.mark.parametrize("cls", [broken.NeedsWholeBlocks])
def test_length_that_fails_is_named(cls):
    failed = failures(cls, "NS", ["lengths"])
    assert set(failed) == {"any_length"}
    assert failed["any_length"].startswith("raised RuntimeError: n=17: RuntimeError: unflatten")


@pytest.mark.parametrize("cls", [broken.QuadraticMemory, broken.QuadraticTime])
def test_quadratic_method_that_claims_to_be_linear(cls):
    failed = failures(cls, "NS", ["growth"], complexity="n")
    assert ("memory_growth" in failed) == (cls is broken.QuadraticMemory)
    assert "time_growth" in failed
    assert not failures(cls, "NS", ["growth"], complexity="n^2")
    assert not failures(cls, "NS", ["memory_growth"], complexity=None)


@pytest.mark.parametrize("pattern", [Pattern.NS, Pattern.NC])
def test_module_that_checks_nothing(pattern):
    subject = Subject("anything", broken.TakesAnything, pattern, complexity="1", is_registered=True)
    results = {result.check: result for result in run_checks(subject, select_checks(["contract"]))}
    assert not results["wrong_inputs"].passed
    assert not results["wrong_options"].passed


@pytest.mark.parametrize(
    ("cls", "pattern", "complexity"),
    [
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
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else value,
)
def test_sound_attention_passes(cls, pattern, complexity):
    assert failures(cls, pattern, None, complexity) == {}


def test_graph_break_is_found_on_demand():
    failed = failures(broken.LooksAtANumber, "NS", ["compile"])
    assert set(failed) == {"compile_graph_breaks"}
    assert failures(broken.Softmax, "NS", ["compile"]) == {}
