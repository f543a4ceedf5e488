"""Every deliberately broken attention is caught by the checks that name its defect."""

import re

import pytest
from torch import nn

from cab import Attention, Pattern
from cab.registry.registries import ATTENTIONS
from cab.verification import growth, run_checks, select_checks, suite, walk
from cab.verification.subject import Subject
from cab.verification.walk import draw_rules
from tests.cab.verification.planted import broken_calls, broken_decoding, broken_inputs, broken_learning
from tests.cab.verification.planted.mutations import LONG, MEDIUM, Weighted, failures, variant
from tests.cab.verification.planted.sound_learning import Deep

DEFECTS = [case for part in (broken_calls, broken_decoding, broken_inputs, broken_learning) for case in part.DEFECTS]


@pytest.fixture(autouse=True)
def _short_walks(monkeypatch):
    """Walks of half as many rules, the shortest part of which is found in a fourth of the time."""
    monkeypatch.setattr(walk, "draw_rules", lambda seed, count, *, pads: draw_rules(seed, count // 2, pads=pads))


@pytest.mark.parametrize(("cls", "pattern", "checks", "long"), DEFECTS)
def test_defect_is_caught_and_named(cls, pattern, checks, long, monkeypatch):
    monkeypatch.setattr(suite, "guilty", lambda *_: "")  # the submodule is named by test_localize.py
    selected = ["packed"] if checks[0].startswith("packed_") else checks
    found = failures(cls, pattern, selected, quick=not long, long=long or LONG)
    assert set(found) == set(checks)
    assert not re.search(r"\b(Name|Attribute|Type|UnboundLocal|Import)Error\b", " ".join(found.values())), found


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pattern", list(Pattern))
def test_sound_packed_form_passes(pattern, quick):
    assert failures(broken_decoding.PackedSoftmax, pattern, ["packed"], quick=quick, long=MEDIUM) == {}


def test_choice_of_queries_that_sees_the_future_has_no_gradient():
    """Informer's masked form: which queries are computed depends on all of them."""
    subject = Subject("informer", ATTENTIONS.get("probsparse").cls, Pattern.CS, {"factor": 2})
    checks = select_checks(["lookahead_gradient", "lookahead_perturbation"], quick=True)
    assert [result.check for result in run_checks(subject, checks) if not result.passed] == ["lookahead_perturbation"]


class SometimesQuadratic(Weighted):
    """Linear attention that writes all weights out in one ``mode``."""

    mode = "with padding"

    def attend(self, query, key, value, padding):
        q, k = query.relu() + 0.1, key.relu() + 0.1
        has_padding = padding.key is not None
        if has_padding:
            k = k.masked_fill(padding.key[:, None, :, None], 0.0)
        modes = {"with padding": has_padding, "in training": self.training, "in evaluation": not self.training}
        if not modes[self.mode]:
            return q @ (k.mT @ value) / (q @ k.sum(2).unsqueeze(-1))
        scores = q @ k.mT
        return scores @ value / scores.sum(-1, keepdim=True)


@pytest.mark.parametrize("mode", ["with padding", "in evaluation", "in training"])
def test_quadratic_memory_is_declared_or_fails(mode, monkeypatch):
    monkeypatch.setattr(growth, "LONGEST", 2048)
    monkeypatch.setattr(SometimesQuadratic, "mode", mode)
    claimed, declared = (
        failures(SometimesQuadratic, "NS", ["memory_growth"], quick=False, complexity=x) for x in ("n", "n^2")
    )
    assert mode in claimed["memory_growth"]
    assert declared == {}


class TakesAnything(Attention):
    def __init__(self, *, embed_dim, **_anything):
        super(Attention, self).__init__()
        self.embed_dim, self.pattern = embed_dim, None
        self.linear = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, *_source, **_masks):
        return self.linear(query)


@pytest.mark.parametrize("pattern", [Pattern.NS, Pattern.NC])
def test_module_that_checks_nothing(pattern):
    assert {"wrong_inputs", "wrong_options"} <= set(failures(TakesAnything, pattern, ["contract"], complexity="1"))


LAST_SEES_ALL = variant(Deep, forgets=lambda c: 0 < c.layer_position.index == c.layer_position.num_layers - 1)
FIRST_IGNORES_PADDING = variant(
    Deep, weights=lambda c: c.but(mask=c.mask if c.layer_position.index or c.layer_position.num_layers == 1 else None)
)


@pytest.mark.parametrize(("cls", "pattern", "layer"), [(LAST_SEES_ALL, "CS", 3), (FIRST_IGNORES_PADDING, "NS", 0)])
def test_defect_in_one_layer_position_is_caught(cls, pattern, layer):
    """A single layer passes the same checks."""
    failed = failures(cls, pattern, ["every_layer_position"], quick=False)
    assert f"at layer {layer} of 4," in failed["every_layer_position"]
    assert not failures(cls, pattern, ["lookahead_gradient", "padded_left"])


class LooksAtANumber(Weighted):
    """Python asks for a value of a tensor, which breaks the graph of torch.compile."""

    def attend(self, query, key, value, padding):
        if query.abs().max().item() > 1e6:
            query = query / 1e6
        return super().attend(query, key, value, padding)


@pytest.mark.slow
def test_graph_break_is_found_on_demand():
    assert set(failures(LooksAtANumber, "NS", ["compile"], quick=False)) == {"compile_graph_breaks"}
    assert failures(Weighted, "NS", ["compile"], quick=False) == {}
