"""Every deliberately broken attention is caught by the checks that name its defect."""

from __future__ import annotations

import pytest

from cab import Pattern
from cab.registry.registries import ATTENTIONS
from cab.verification import growth, run_checks, select_checks, suite
from cab.verification.subject import Subject
from tests.helpers.verification import broken_calls, broken_decoding, broken_inputs, broken_learning  # noqa: F401
from tests.helpers.verification.mutations import LONG, MUTATIONS, PLANTED, Weighted, failures


@pytest.mark.parametrize(("cls", "pattern", "checks", "long"), MUTATIONS)
def test_defect_is_caught_and_named(cls, pattern, checks, long, monkeypatch):
    monkeypatch.setattr(suite, "guilty", lambda *_: "")  # the submodule is named by test_localize.py
    selected = ["packed"] if checks[0].startswith("packed_") else checks
    assert set(failures(cls, pattern, selected, quick=not long, long=long or LONG)) == set(checks)


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pattern", list(Pattern))
def test_sound_packed_form_passes(pattern, quick):
    assert failures(broken_decoding.PackedSoftmax, pattern, ["packed"], quick=quick) == {}


def test_choice_of_queries_that_sees_the_future_has_no_gradient():
    """Informer's masked form: which queries are computed depends on all of them."""
    subject = Subject("informer", ATTENTIONS.get("probsparse").cls, Pattern.CS, {"factor": 2})
    checks = select_checks(["lookahead_gradient", "lookahead_perturbation"], quick=True)
    assert [result.check for result in run_checks(subject, checks) if not result.passed] == ["lookahead_perturbation"]


@pytest.mark.parametrize("mode", ["with padding", "in evaluation", "in training"])
def test_quadratic_memory_that_claims_to_be_linear(mode, monkeypatch):
    monkeypatch.setattr(growth, "LONGEST", 2048)
    monkeypatch.setattr(broken_inputs.SometimesQuadratic, "mode", mode)
    failed = failures(broken_inputs.SometimesQuadratic, "NS", ["memory_growth"], quick=False, complexity="n")
    assert mode in failed["memory_growth"]


def test_quadratic_memory_that_is_declared():
    assert not failures(Weighted, "NS", ["memory_growth"], quick=False, complexity="n^2")


@pytest.mark.parametrize("pattern", [Pattern.NS, Pattern.NC])
def test_module_that_checks_nothing(pattern):
    failed = failures(broken_inputs.TakesAnything, pattern, ["contract"], complexity="1")
    assert {"wrong_inputs", "wrong_options"} <= set(failed)


@pytest.mark.parametrize(("name", "pattern", "layer"), [("last_sees_all", "CS", 3), ("first_ignores_padding", "NS", 0)])
def test_defect_in_one_layer_position_is_caught(name, pattern, layer):
    """A single layer passes the same checks."""
    failed = failures(PLANTED[name], pattern, ["every_layer_position"], quick=False)
    assert f"at layer {layer} of 4," in failed["every_layer_position"]
    assert not failures(PLANTED[name], pattern, ["lookahead_gradient", "padded_left"])


@pytest.mark.slow
def test_graph_break_is_found_on_demand():
    assert set(failures(broken_inputs.LooksAtANumber, "NS", ["compile"], quick=False)) == {"compile_graph_breaks"}
    assert failures(Weighted, "NS", ["compile"], quick=False) == {}
