"""Feature maps of linear attentions: slopes, limits, signed and released denominators, positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attentions.kernels.linear_attention import (
    KERNELS,
    Elementwise,
    FeatureMap,
    Reweighted,
    Taylor,
    Trigonometric,
    safe_denominator,
)
from attentions.random_features import RandomFeatureAttention
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


def rfa(pattern: str, num_features: int, **options: Any) -> RandomFeatureAttention:
    module = build_attention("rfa", pattern=pattern, embed_dim=8, num_heads=1, num_features=num_features, **options)
    assert isinstance(module, RandomFeatureAttention)
    return module.double()


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


def test_denominators_keep_their_sign() -> None:
    found = safe_denominator(torch.tensor([-5.0, -1e-9, -0.0, 0.0, 1e-9, 5.0]), 1e-6)
    torch.testing.assert_close(found, torch.tensor([-5.0, -1e-6, -1e-6, 1e-6, 1e-6, 5.0]))


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
