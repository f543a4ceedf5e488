"""Feature maps of linear attentions: slopes, limits, signed and released denominators, positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attentions.deltanet import DPFPAttention
from attentions.kernels.linear_attention import (
    KERNELS,
    Elementwise,
    FeatureMap,
    Reweighted,
    Taylor,
    Trigonometric,
    safe_denominator,
    unit,
)
from attentions.random_features import PerformerAttention, RandomFeatureAttention, ReleasedExponential
from cab import PaddingMasks, build_attention
from tests.attentions.agreement import make

MAPS: list[tuple[FeatureMap, bool]] = [
    *((kernel, False) for kernel in KERNELS.values()),
    *((Reweighted(kernel), True) for kernel in KERNELS.values()),
    (Trigonometric(), False),
    (Taylor(), False),
]


@pytest.mark.parametrize(("kind", "has_factors"), MAPS)
def test_features_have_the_slopes_of_their_definition(kind: FeatureMap, has_factors: bool) -> None:
    x = torch.randn(1, 1, 6, 4, dtype=torch.float64, requires_grad=True)
    angle = torch.rand(1, 1, 6, 1, dtype=torch.float64)
    factors = torch.stack([angle.cos(), angle.sin()], dim=-2) if has_factors else None
    features = kind.forward(x, factors)
    grad = torch.randn_like(features)
    (expected,) = torch.autograd.grad(features, x, grad)
    torch.testing.assert_close(kind.backward(features.detach(), factors, grad), expected)


@pytest.mark.parametrize("width", [1, 2, 3, 16])
def test_taylor_features_are_the_second_order_exponential(width: int) -> None:
    q, k = torch.randn(2, 1, 1, 5, width, dtype=torch.float64)
    products = q @ k.mT
    features = Taylor().forward(q, None)
    assert features.shape[-1] == 1 + width + width * (width + 1) // 2
    torch.testing.assert_close(features @ Taylor().forward(k, None).mT, 1 + products + products.square() / 2)


def test_based_nears_softmax_attention_where_scores_are_small() -> None:
    module = make("based", "NS", feature_dim=8)
    query, key, value = torch.randn(3, 1, 3, 20, 8, dtype=torch.float64)
    for scale, error in ((0.1, 2e-3), (0.01, 2e-6)):
        expected = torch.nn.functional.scaled_dot_product_attention(scale * query, key, value)
        output = module.attend(scale * query, key, value, PaddingMasks())
        assert (output - expected).norm() < error * expected.norm()


def rfa(pattern: str, num_features: int, **options: Any) -> RandomFeatureAttention:
    module = build_attention("rfa", pattern=pattern, embed_dim=8, num_heads=1, num_features=num_features, **options)
    assert isinstance(module, RandomFeatureAttention)
    return module.double()


@pytest.mark.parametrize("pattern", ["NS", "CS", "NC", "CC"])
def test_rfa_nears_softmax_attention_of_unit_vectors(pattern: str) -> None:
    query, key, value = torch.randn(3, 1, 1, 20, 8, dtype=torch.float64)
    logits = unit(query) @ unit(key).mT
    if pattern == "CS":
        logits = logits.masked_fill(torch.ones(20, 20, dtype=torch.bool).triu(1), -torch.inf)
    expected = logits.softmax(dim=-1) @ value
    errors = []
    for num_features in (64, 1024, 16384):
        module = rfa(pattern, num_features)
        module.deviation.data.fill_(1.0)
        errors.append((module.attend(query, key, value, PaddingMasks()) - expected).norm() / expected.norm())
    assert errors[2] < errors[1] < errors[0]
    assert errors[2] < errors[0] / 8  # the square root of 256 is 16


def test_a_gate_that_counts_is_no_gate() -> None:
    """g_t = t / (t + 1) makes of the sums their means, and these cancel in the quotient."""
    gated = rfa("CS", 7, gate=True)
    plain = rfa("CS", 7)
    plain.load_state_dict(gated.state_dict(), strict=False)
    query, key, value = torch.randn(3, 1, 1, 90, 8, dtype=torch.float64)
    logits = torch.arange(90, dtype=torch.float64).clamp(min=1e-30).log().view(1, -1, 1)
    gated.smallest_denominator = plain.smallest_denominator = 1e-12
    output = gated.attend(query, key, value, PaddingMasks(), gate=logits)
    torch.testing.assert_close(output, plain.attend(query, key, value, PaddingMasks()), rtol=1e-6, atol=1e-8)
    assert gated.gate_proj.bias.sigmoid().allclose(torch.tensor(0.9, dtype=torch.float64))


def test_dpfp_by_hand() -> None:
    module = build_attention("dpfp", pattern="NS", embed_dim=2, num_heads=1, nu=2)
    assert isinstance(module, DPFPAttention)
    x = torch.tensor([2.0, -3.0])  # [2, 0, 0, 3] with [3, 2, 0, 0] and [0, 3, 2, 0]
    assert module.prepare(x).tolist() == [6, 0, 0, 0, 0, 0, 0, 0]
    x = torch.tensor([2.0, 3.0])  # [2, 3, 0, 0] with [0, 2, 3, 0] and [0, 0, 2, 3]
    assert module.prepare(x).tolist() == [0, 6, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("pattern", "update"), [("NS", "sum"), ("CS", "delta"), ("NC", "sum"), ("CC", "sum")])
def test_dpfp_is_the_delta_rule_where_there_is_an_order(pattern: str, update: str) -> None:
    module = build_attention("dpfp", pattern=pattern, embed_dim=8, num_heads=1)
    assert isinstance(module, DPFPAttention)
    assert module.update == update


def test_denominators_keep_their_sign() -> None:
    found = safe_denominator(torch.tensor([-5.0, -1e-9, -0.0, 0.0, 1e-9, 5.0]), 1e-6)
    torch.testing.assert_close(found, torch.tensor([-5.0, -1e-6, -1e-6, 1e-6, 1e-6, 5.0]))


@pytest.mark.parametrize("pattern", ["NS", "CS"])
def test_ablation_without_cosine_is_linear_attention(pattern: str) -> None:
    for kernel in KERNELS:
        plain, other = make("linear", pattern, kernel=kernel), make("cosformer", pattern, kernel=kernel, reweight=False)
        other.load_state_dict(plain.state_dict())
        x = torch.randn(1, 12, 24, dtype=torch.float64) + 1.0
        torch.testing.assert_close(other(x), plain(x))


def test_kernels_that_are_positive_say_so() -> None:
    x = torch.randn(1000)
    for kernel in KERNELS.values():
        assert isinstance(kernel, Elementwise)
        assert bool((kernel.forward(x, None) >= 0).all()) == kernel.is_positive


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
