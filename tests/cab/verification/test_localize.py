"""The guilty submodule: planted defects are named, and nothing is named in a sound module."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from cab.registry.registries import ATTENTIONS
from cab.verification import localize, verify_attention
from cab.verification.localize import EXPERIMENTS, LENGTHS, guilty
from cab.verification.suite import headline, subject_of
from tests.cab.verification.planted.mutations import nothing, variant

SHORT = (5, 37)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Experiments of two lengths, which every planted defect shows."""
    monkeypatch.setattr(localize, "LENGTHS", SHORT)


@dataclass
class Output:
    x: torch.Tensor


class Mean(nn.Module):
    """The mean of the real tokens so far."""

    def forward(self, x, mask):
        real = torch.ones_like(x[..., :1]) if mask is None else (~mask)[..., None].to(x)
        return Output((x * real).cumsum(1) / real.cumsum(1).clamp(min=1))


class Layer(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.mix, self.norm, self.out = Mean(), nn.LayerNorm(embed_dim), nn.Linear(embed_dim, embed_dim)

    def between(self, x):
        return x

    def forward(self, x, mask):
        return x + self.out(self.between(self.norm(self.mix(x, mask).x)))


class Model(nn.Module):
    padding_layouts = ("right", "left")

    def __init__(self, *, embed_dim=32):
        super().__init__()
        self.embed_dim = embed_dim
        self.layers = nn.ModuleList([Layer(embed_dim) for _ in range(2)])

    def forward(self, query, query_padding_mask=None, key_padding_mask=None):  # noqa: ARG002
        for layer in self.layers:
            query = layer(query, query_padding_mask)
        return query


class Sum:
    """Adds the sum of all earlier outputs."""

    total = 0.0

    def __call__(self, x):
        output = x + self.total
        self.total = self.total + x.detach().mean()
        return output


def hooked(name, defect):
    """Return a function that plants a defect of the outputs in a submodule."""
    return lambda m: m.get_submodule(name).register_forward_hook(lambda _module, _inputs, x: defect(x))


IN_NORM = [
    ("lookahead_perturbation", lambda x: x + x.roll(-1, 1)),
    ("lookahead_length", lambda x: x * (1 + x.shape[1])),
    ("rows_independent", lambda x: x - 0.5 * x.mean(0)),
    ("rows_independent", lambda x: (x / x.abs().amax() * 31).round() * x.abs().amax() / 31),
    ("padded_left", lambda x: x + x.cumsum(1) / 9),
    ("eval_repeatable", Sum()),
    ("eval_repeatable", lambda x: x + 0.05 * torch.randn_like(x)),
]


def between(model):
    model.layers[0].between = lambda x: x + x.roll(-1, 1)


def in_steps(defect):
    return hooked("out_proj", lambda x: defect(x) if x.shape[-2] == 1 else x)


IN_MEAN = hooked("layers.1.mix", lambda mean: Output(mean.x + mean.x.roll(-1, 1)))
IN_STEPS = [lambda x: 2 * x, lambda x: x.roll(1, 0)]  # in batches of one row, the second shows nothing
DEFECTS = [
    *((Model, check, hooked("layers.1.norm", defect), "layers.1.norm (LayerNorm)") for check, defect in IN_NORM),
    (Model, "lookahead_perturbation", between, "layers.0 (Layer), between norm and out"),
    (Model, "lookahead_perturbation", IN_MEAN, "layers.1.mix (Mean)"),
    *((ATTENTIONS.get("linear").cls, "decode_steps", in_steps(defect), "out_proj (Linear)") for defect in IN_STEPS),
]


@pytest.mark.parametrize(("base", "check", "plant", "place"), DEFECTS)
def test_a_defect_in_a_submodule_is_named(base, check, plant, place):
    cls = variant(base, __init__=lambda c: nothing(c.y, plant(c.module)))
    [result] = verify_attention(cls, "CS", checks=[check], quick=True)
    assert not result.passed
    assert result.guilty == place
    assert headline([result]).count(f"first in {place}") == 1


GROUPS = ("lengths", "batches", "decoding")  # groups that have all experiments between them


@pytest.mark.parametrize("lengths", [SHORT, pytest.param(LENGTHS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("cls", [Model, ATTENTIONS.get("local").cls])
def test_nothing_is_named_in_a_sound_module(cls, group, lengths, monkeypatch):
    monkeypatch.setattr(localize, "LENGTHS", lengths)
    assert {x for name in GROUPS for x in EXPERIMENTS[name]} == {x for row in EXPERIMENTS.values() for x in row}
    assert guilty(subject_of(cls, "CS", options={}), group) == ""
