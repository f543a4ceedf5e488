"""linear, cosFormer and Performer: readable forms, blocks, positions, features, the released denominator."""

from __future__ import annotations

import pytest
import torch

from attentions.random_features import PerformerAttention, ReleasedExponential
from cab import build_attention
from tests.attentions.agreement import make


def test_cosformer_weights_stay_non_negative_beyond_its_length() -> None:
    module = make("cosformer", "CS", reweighting_length=7)
    torch.nn.init.ones_(module.v_proj.bias)
    torch.nn.init.zeros_(module.v_proj.weight)
    output = module(torch.randn(1, 60, 24, dtype=torch.float64) + 1.0)
    heads = output - module.out_proj.bias  # values are all ones: every weighted mean is one, or zero without weight
    whole = module.out_proj.weight.unflatten(1, (module.num_heads, module.head_dim)).sum(dim=2)
    solution = torch.linalg.lstsq(whole, heads[0].T).solution
    assert ((solution - 1).abs().minimum(solution.abs()) < 1e-6).all()


def test_performer_nears_softmax_attention_with_its_features() -> None:
    vanilla = build_attention("vanilla", pattern="NS", embed_dim=32, num_heads=2)
    x = torch.randn(2, 50, 32)
    errors = []
    for features in (16, 256, 4096):
        performer = build_attention("performer", pattern="NS", embed_dim=32, num_heads=2, num_features=features)
        performer.load_state_dict(vanilla.state_dict() | {"weights": performer.weights})
        errors.append((performer(x) - vanilla(x)).norm() / vanilla(x).norm())
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < errors[0] / 2


@pytest.mark.parametrize(("num_features", "scale", "share"), [(16, 1.0, 0.5), (64, 1.0, 1.0), (16, 0.5, 0.0)])
def test_how_often_the_released_floor_replaces_a_denominator(num_features: int, scale: float, share: float) -> None:
    """Head width 64, 1,024 tokens: the figures of docs/paper/discrepancies.md."""
    attention = build_attention(
        "performer", pattern="NS", embed_dim=512, num_heads=8, num_features=num_features, denominator_floor=0.1
    )
    assert isinstance(attention, PerformerAttention)
    query, key = scale * torch.randn(2, 2, 8, 1024, 64)
    queries, keys = attention.logarithms(query), attention.logarithms(key)
    queries = ReleasedExponential().forward(queries - queries.amax(dim=-1, keepdim=True), None)
    keys = ReleasedExponential().forward(keys - keys.amax(dim=(-2, -1), keepdim=True), None)
    denominators = queries @ keys.sum(dim=-2).unsqueeze(-1)
    assert (denominators < 0.1).float().mean().item() == pytest.approx(share, abs=0.15)
