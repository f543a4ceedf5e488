"""Initial values and decays are those of published layers, and defaults those that the table of defaults states."""

import csv
import inspect
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attentions.rwkv import default_rank
from cab import LayerPosition, build_attention
from cab.registry.registries import ATTENTIONS
from cab.training import parameter_groups
from tests.helpers.attentions.agreement import make


def lightning_decays(**options: Any) -> Tensor:
    module = build_attention("lightning", pattern="CS", embed_dim=48, **options)
    x = torch.ones(1, module.num_heads, 2, 48 // module.num_heads, dtype=torch.float64)
    return module.terms(x, x, x, {}, torch.zeros(1, 2)).log_decay[0, :, 0].exp()


def test_decays_of_lightning_are_those_of_the_paper():
    """flash-linear-attention bc3b101, ``chunk_lightning_attn``: -(8 / H) (1 - l / L) h of head h = 0, 1, ..."""
    for index, heads in ((0, 3), (1, 3), (2, 3), (0, 8), (1, 12)):
        found = lightning_decays(num_heads=heads, layer_position=LayerPosition(index, 3))
        expected = [math.exp(-8 / heads * h * (1 - index / 3)) for h in range(heads)]
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_only_the_first_layer_of_lightning_encodes_positions():
    """Scores depend on the distance, and the outputs on the positions."""
    first, second = (make("lightning", "CS", layer_position=LayerPosition(index, 2)) for index in range(2))
    assert second.theta is None
    x = torch.randn(1, 30, 24, dtype=torch.float64)
    encoded = first(x)
    query, key, value = (y[:, :, :1].expand(-1, -1, 30, -1) for y in first.project(x, x, x))
    terms = first.terms(query, key, value, {}, torch.arange(30)[None])
    scores = terms.query @ terms.key.mT
    torch.testing.assert_close(scores[..., 1:, 1:], scores[..., :-1, :-1])
    with torch.no_grad():
        first.theta.zero_()
    assert (encoded - first(x)).norm() > 1e-3 * encoded.norm()


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 24, 48])
def test_released_decays_of_lightning(heads):
    """OpenNLPLab/lightning-attention d15c385: ALiBi's slopes, for 12 heads those of 8 and every second of 16."""
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    slopes += [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)][: heads - power]
    for index, factor in ((0, 1.0), (1, 0.5), (2, 0.0)):
        expected = [math.exp(-slope * (factor + 1e-5)) for slope in slopes]
        found = lightning_decays(num_heads=heads, layer_position=LayerPosition(index, 3), variant="repository")
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_hgrn2_forgets_less_in_later_layers():
    key = torch.full((1, 3, 1, 8), -50.0)
    for index, count in ((0, 4), (1, 4), (3, 4)):
        position = LayerPosition(index, count)
        module = build_attention("hgrn2", pattern="CS", embed_dim=24, num_heads=3, layer_position=position)
        terms = module.terms(key, key, key, {}, torch.zeros(1, 1))
        torch.testing.assert_close(terms.log_decay.exp(), torch.full_like(key, index / count), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(terms.key, 1 - terms.log_decay.exp())


def test_ranks_of_rwkv7_follow_the_width():
    for width, ranks in ((32, (32, 32)), (512, (64, 128)), (768, (64, 128)), (2048, (128, 224))):
        assert (default_rank(2.5, width), default_rank(5.0, width)) == ranks
    module = build_attention("rwkv7", pattern="CS", embed_dim=512, num_heads=1)
    assert [x.shape[1] for x in (module.decay_in, module.rate_in, module.gate_in)] == [64, 64, 128]


def test_state_spaces_of_s4_are_trained_without_weight_decay():
    without = {name for name, rule in make("s4", "CS").param_group_overrides().items() if rule.weight_decay == 0.0}
    assert without == {"log_decay", "frequency", "low_rank", "input", "log_dt"}


STEPS = [
    ("ssd", 3, "step_proj"),
    ("gated_deltanet", 2, "step_proj"),
    ("comba", 3, "step_proj"),
    ("deltaproduct", 2, "step_proj"),
    ("kda", 2, "decay_map.1"),
    ("gated_deltanet_2", 2, "decay_map.1"),
    ("mamba3", 2, "step_proj"),
]


@pytest.mark.parametrize(("name", "own", "linear"), STEPS)
def test_rates_and_steps_have_no_weight_decay(name, own, linear):
    module = build_attention(name, pattern="CS", embed_dim=24, num_heads=3)
    first, second = parameter_groups(module, learning_rate=1.0, weight_decay=0.1)
    assert (first["weight_decay"], second["weight_decay"], len(second["params"])) == (0.1, 0.0, own)
    step = torch.nn.functional.softplus(module.get_submodule(linear).bias)
    assert ((step > 0.9e-3) & (step < 0.11)).all()


ROWS = list(csv.DictReader((Path(__file__).parents[2] / "attentions" / "defaults.csv").open(encoding="utf-8")))


def test_stated_defaults_are_those_of_the_constructors():
    """An option whose default is computed (None) is described in words."""
    compared = 0
    for row in ROWS:
        parameter = inspect.signature(ATTENTIONS.get(row["attention"]).cls).parameters.get(row["part"])
        if parameter is not None and parameter.default is not None and row["part"] != "dropout":
            assert row["default"] == str(parameter.default), row
            compared += 1
    assert compared > 10
