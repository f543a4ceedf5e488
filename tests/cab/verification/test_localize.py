"""The guilty submodule: planted defects are named, and nothing is named in a sound module."""

from __future__ import annotations

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


class Mean(nn.Module):
    """The mean of the real tokens so far."""

    def forward(self, x, mask):
        real = torch.ones_like(x[..., :1]) if mask is None else (~mask)[..., None].to(x)
        return (x * real).cumsum(1) / real.cumsum(1).clamp(min=1)


class Layer(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.mix, self.norm, self.out = Mean(), nn.LayerNorm(embed_dim), nn.Linear(embed_dim, embed_dim)

    def between(self, x):
        return x

    def forward(self, x, mask):
        return x + self.out(self.between(self.norm(self.mix(x, mask))))


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


DOUBLES_STEPS = hooked("out_proj", lambda x: x * (2 if x.shape[-2] == 1 else 1))
DEFECTS = [
    *((Model, check, hooked("layers.1.norm", defect), "layers.1.norm (LayerNorm)") for check, defect in IN_NORM),
    (Model, "lookahead_perturbation", between, "layers.0 (Layer), between norm and out"),
    (ATTENTIONS.get("linear").cls, "decode_steps", DOUBLES_STEPS, "out_proj (Linear)"),
]


@pytest.mark.parametrize(("base", "check", "plant", "place"), DEFECTS)
def test_a_defect_in_a_submodule_is_named(base, check, plant, place):
    cls = variant(base, __init__=lambda c: nothing(c.y, plant(c.module)))
    [result] = verify_attention(cls, "CS", checks=[check], quick=True)
    assert not result.passed
    assert result.guilty == place
    assert headline([result]).count(f"first in {place}") == 1


@dataclass
class Output:
    x: torch.Tensor


class Cached(nn.Module):
    """The mean of a cache, whose rows the planted defect mixes, and which no batch of one row shows."""

    def __init__(self, embed_dim, *, is_broken):
        super().__init__()
        self.is_broken, self.value = is_broken, nn.Linear(embed_dim, embed_dim)

    def forward(self, x, earlier):
        values = torch.cat([earlier.roll(1, 0) if self.is_broken else earlier, self.value(x)], 1)
        counts = torch.arange(1, 1 + values.shape[1])[:, None]
        return Output((values.cumsum(1) / counts)[:, -x.shape[1] :]), values


class CachedModel(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.embed_dim = embed_dim
        self.layers = nn.ModuleList([Cached(embed_dim, is_broken=i == 1) for i in range(3)])

    def init_state(self, batch_size):
        return {str(i): torch.zeros(batch_size, 0, self.embed_dim) for i in range(3)}

    def read(self, x, state):
        new = {}
        for i, layer in enumerate(self.layers):
            output, new[str(i)] = layer(x, state[str(i)])
            x = x + output.x
        return x, new

    def step(self, token, state):
        output, state = self.read(token.reshape(len(token), 1, -1), state)
        return output.reshape(token.shape), state

    def forward(self, query):
        return self.read(query, self.init_state(len(query)))[0]


def test_mixed_rows_of_a_cache_are_named():
    [result] = verify_attention(CachedModel, "CS", checks=["decode_steps"], quick=True)
    assert not result.passed
    assert result.guilty.startswith("layers.1 (Cached)")


GROUPS = ("lengths", "batches", "decoding")
"""Groups that have all experiments between them."""


@pytest.mark.parametrize("lengths", [SHORT, pytest.param(LENGTHS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("cls", [Model, ATTENTIONS.get("local").cls])
def test_nothing_is_named_in_a_sound_module(cls, group, lengths, monkeypatch):
    monkeypatch.setattr(localize, "LENGTHS", lengths)
    assert {x for name in GROUPS for x in EXPERIMENTS[name]} == {x for row in EXPERIMENTS.values() for x in row}
    assert guilty(subject_of(cls, "CS", options={}), group) == ""
