"""Initial values and decays are those of published layers, and defaults those that the table of defaults states."""

from __future__ import annotations

import csv
import inspect
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attentions.rwkv import RWKV6Attention, RWKV7Attention, TokenShift, default_rank
from cab import LayerPosition, build_attention
from cab.registry.registries import ATTENTIONS
from cab.training import parameter_groups


def lightning_decays(**options: Any) -> Tensor:
    module = build_attention("lightning", pattern="CS", embed_dim=48, **options)
    x = torch.ones(1, module.num_heads, 2, 48 // module.num_heads, dtype=torch.float64)
    return module.terms(x, x, x, {}, torch.zeros(1, 2)).log_decay[0, :, 0].exp()


def test_decays_of_lightning_are_those_of_the_paper() -> None:
    """flash-linear-attention bc3b101, ``chunk_lightning_attn``: -(8 / H) (1 - l / L) h of head h = 0, 1, ..."""
    for index, heads in ((0, 3), (1, 3), (2, 3), (0, 8), (1, 12)):
        found = lightning_decays(num_heads=heads, layer_position=LayerPosition(index, 3))
        expected = [math.exp(-8 / heads * h * (1 - index / 3)) for h in range(heads)]
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16, 24, 48])
def test_released_decays_of_lightning(heads: int) -> None:
    """OpenNLPLab/lightning-attention d15c385: ALiBi's slopes, for 12 heads those of 8 and every second of 16."""
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    slopes += [2 ** (-8 * (h + 1) / (2 * power)) for h in range(0, 2 * power, 2)][: heads - power]
    for index, factor in ((0, 1.0), (1, 0.5), (2, 0.0)):
        expected = [math.exp(-slope * (factor + 1e-5)) for slope in slopes]
        found = lightning_decays(num_heads=heads, layer_position=LayerPosition(index, 3), variant="repository")
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_hgrn2_forgets_less_in_later_layers() -> None:
    key = torch.full((1, 3, 1, 8), -50.0)
    for index, count in ((0, 4), (1, 4), (3, 4)):
        module = build_attention(
            "hgrn2", pattern="CS", embed_dim=24, num_heads=3, layer_position=LayerPosition(index, count)
        )
        terms = module.terms(key, key, key, {}, torch.zeros(1, 1))
        torch.testing.assert_close(terms.log_decay.exp(), torch.full_like(key, index / count), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(terms.key, 1 - terms.log_decay.exp())


def assert_begins_as_rwkv(module: TokenShift) -> None:
    """RWKV-LM 524481d, ``generate_init_weight``: orthogonal r and v, k a tenth of that, an output of zero."""
    for linear, gain in ((module.q_proj, 1.0), (module.k_proj, 0.1), (module.v_proj, 1.0), (module.out_proj, 0.0)):
        torch.testing.assert_close(linear.weight @ linear.weight.mT, gain**2 * torch.eye(24), atol=1e-6, rtol=1e-5)
        assert linear.bias is None


def test_rwkv6_begins_as_released() -> None:
    """RWKV-LM's RWKV-v5/src/model.py, RWKV_Tmix_x060: the second of three layers, two of its 24 channels."""
    module = build_attention("rwkv6", pattern="CS", embed_dim=24, num_heads=3, layer_position=LayerPosition(1, 3))
    assert isinstance(module, RWKV6Attention)
    assert_begins_as_rwkv(module)
    gate = module.gate_proj.weight
    torch.testing.assert_close(gate @ gate.mT, 0.01 * torch.eye(24), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(module.norm_weight, torch.full_like(module.norm_weight, (2 / 3) ** 0.7))
    far = 1 - 0.5 ** (2 / 3), 1 - 0.5 ** (1 / 3)  # channel 12 of 24
    torch.testing.assert_close(module.mix[:, 12], torch.tensor([far[0], far[0], far[0] - 0.15, far[1], far[1]]))
    torch.testing.assert_close(module.decay[[0, 23]], torch.tensor([-6.0, -1.0]))
    torch.testing.assert_close(module.decay[12], torch.tensor(-6 + 5 * (12 / 23) ** 1.35))
    torch.testing.assert_close(module.bonus.flatten()[[0, 12]], torch.tensor([0.5, 0.5 * 11 / 23]), atol=1e-6, rtol=0)


def test_rwkv7_begins_as_released() -> None:
    """RWKV-LM's RWKV-v7/train_temp/src/model.py, RWKV_Tmix_x070: the second of three layers, some of 24 channels."""
    module = build_attention("rwkv7", pattern="CS", embed_dim=24, num_heads=3, layer_position=LayerPosition(1, 3))
    assert isinstance(module, RWKV7Attention)
    assert_begins_as_rwkv(module)
    mixed = [1 - 0.5 ** (power * 2 / 3) for power in (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)]  # channel 12 of 24
    torch.testing.assert_close(module.mix[:, 12], torch.tensor(mixed))
    zigzag = torch.tensor([-1.0, (1 / 7) ** 2, 1.0])  # channels 0, 4 and 7 of heads of 8
    place, channels = torch.tensor([0.0, 12.0, 23.0]) / 23, [0, 12, 23]
    torch.testing.assert_close(module.decay[channels], -6 + 6 * place ** (1 + 0.5**0.3) + 0.5 + 2.5 * zigzag)
    torch.testing.assert_close(module.rate[channels], -0.19 + 0.3 * zigzag + 0.4 * (place - 0.5))
    torch.testing.assert_close(module.removed.flatten()[channels], 0.71 - 0.1 * (place - 0.5))
    torch.testing.assert_close(module.replaced, torch.full_like(module.replaced, 1.02))
    torch.testing.assert_close(module.bonus, torch.full_like(module.bonus, -0.04))
    torch.testing.assert_close(module.norm_weight, torch.full_like(module.norm_weight, (2 / 3) ** 0.7))
    assert not any(x.any() for x in (module.decay_in, module.rate_in, module.gate_in))
    for second in (module.decay_out, module.rate_out, module.gate_out):
        assert second.shape == (32, 24)
        torch.testing.assert_close(second.mT @ second, 0.01 * 32 / 24 * torch.eye(24), atol=1e-6, rtol=1e-5)


def test_ranks_of_rwkv7_follow_the_width() -> None:
    for width, ranks in ((32, (32, 32)), (512, (64, 128)), (768, (64, 128)), (2048, (128, 224))):
        assert (default_rank(2.5, width), default_rank(5.0, width)) == ranks
    module = build_attention("rwkv7", pattern="CS", embed_dim=512, num_heads=1)
    assert [x.shape[1] for x in (module.decay_in, module.rate_in, module.gate_in)] == [64, 64, 128]


def test_mlstm_starts_with_closed_input_gates_and_open_forget_gates() -> None:
    module = build_attention("mlstm", pattern="CS", embed_dim=24, num_heads=4)
    assert not any(linear.weight.any() for linear in (module.input_proj, module.forget_proj))
    assert module.input_proj.bias.tolist() == [-10.0] * 4
    assert module.forget_proj.bias.tolist() == [3.0, 4.0, 5.0, 6.0]


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
def test_rates_and_steps_have_no_weight_decay(name: str, own: int, linear: str) -> None:
    module = build_attention(name, pattern="CS", embed_dim=24, num_heads=3)
    first, second = parameter_groups(module, learning_rate=1.0, weight_decay=0.1)
    assert (first["weight_decay"], second["weight_decay"], len(second["params"])) == (0.1, 0.0, own)
    step = torch.nn.functional.softplus(module.get_submodule(linear).bias)
    assert ((step > 0.9e-3) & (step < 0.11)).all()


ROWS = list(csv.DictReader((Path(__file__).parents[2] / "attentions" / "defaults.csv").open(encoding="utf-8")))


def test_every_row_names_a_part_of_a_registered_attention() -> None:
    assert len(ROWS) > 50
    assert {row["attention"] for row in ROWS} <= {entry.name for entry in ATTENTIONS}
    parts = [(row["attention"], row["part"]) for row in ROWS]
    assert len(set(parts)) == len(parts)
    assert all(row["default"] and row["published"] and row["source"] for row in ROWS)


def test_stated_defaults_are_those_of_the_constructors() -> None:
    """An option whose default is computed (None) is described in words."""
    compared = 0
    for row in ROWS:
        parameter = inspect.signature(ATTENTIONS.get(row["attention"]).cls).parameters.get(row["part"])
        if parameter is not None and parameter.default is not None and row["part"] != "dropout":
            assert row["default"] == str(parameter.default), row
            compared += 1
    assert compared > 10
