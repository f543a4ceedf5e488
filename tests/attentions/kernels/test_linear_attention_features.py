"""Feature maps of linear attentions: slopes, limits, signed and released denominators, positions."""

import pytest
import torch

from attentions.kernels import chunks, linear_attention as linear
from tests.helpers.attentions.agreement import make

MAPS: list[tuple[linear.FeatureMap, bool]] = [
    *((kernel, False) for kernel in linear.KERNELS.values()),
    *((linear.Reweighted(kernel), True) for kernel in linear.KERNELS.values()),
    (linear.Trigonometric(), False),
    (linear.Taylor(), False),
]


@pytest.mark.parametrize("at_once", [1, 300, 2**20], ids=["row by row", "two rows", "whole"])
@pytest.mark.parametrize(("kind", "has_factors"), MAPS)
def test_means_in_pieces_are_those_of_all_tokens(kind, has_factors, at_once, monkeypatch):
    """Outputs and gradients with padding, of queries and keys laid out as a layer's heads."""
    monkeypatch.setattr(chunks, "CPU_TOKENS", at_once)
    heads = [torch.randn(3, 150, 2, n, dtype=torch.float64).transpose(1, 2).requires_grad_() for n in (4, 4, 6)]
    query, key, value = heads
    padding = torch.arange(150) >= torch.tensor([[150], [97], [0]])
    angle = torch.rand(1 if at_once == 1 else 3, 1, 150, 1, dtype=torch.float64)
    factors = torch.stack([angle.cos(), angle.sin()], dim=-2) if has_factors else None

    sums, mass = linear.sum_of_keys(kind, key, value, factors, padding)
    found = linear.mean_of_queries(kind, query, factors, sums, mass, 1e-6)
    keys = kind.forward(key, factors).masked_fill(padding[:, None, :, None], 0.0)
    weights = kind.forward(query, factors) @ keys.mT
    expected = weights / linear.safe_denominator(weights.sum(dim=-1, keepdim=True), 1e-6) @ value
    scale = expected.abs().amax()  # weights of both signs have sums near zero
    torch.testing.assert_close(found / scale, expected / scale)
    grad = torch.randn_like(found)
    for x, y in zip(torch.autograd.grad(found, heads, grad), torch.autograd.grad(expected, heads, grad), strict=True):
        torch.testing.assert_close(x / y.abs().amax(), y / y.abs().amax())


@pytest.mark.parametrize("kind", [linear.KERNELS["elu1"], linear.Taylor()])
@pytest.mark.parametrize("of_keys", [False, True])
def test_a_second_derivative_is_refused_whatever_is_stored(kind, of_keys):
    x, value = torch.randn(1, 1, 5, 4, requires_grad=True), torch.randn(1, 1, 5, 4)
    sums, mass = linear.sum_of_keys(kind, x if of_keys else value, value, None, None)
    output = sums if of_keys else linear.mean_of_queries(kind, x, None, sums, mass, 1e-6)
    (first,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(first.square().sum() + x.square().sum(), x)


def test_denominators_keep_their_sign():
    found = linear.safe_denominator(torch.tensor([-5.0, -1e-9, -0.0, 0.0, 1e-9, 5.0]), 1e-6)
    torch.testing.assert_close(found, torch.tensor([-5.0, -1e-6, -1e-6, 1e-6, 1e-6, 5.0]))


def test_kernels_that_are_positive_say_so():
    x = torch.randn(1000)
    for kernel in linear.KERNELS.values():
        assert bool((kernel.forward(x, None) >= 0).all()) == kernel.is_positive


def test_cosformer_weights_stay_non_negative_beyond_its_length():
    module = make("cosformer", "CS", reweighting_length=7)
    torch.nn.init.ones_(module.v_proj.bias)
    torch.nn.init.zeros_(module.v_proj.weight)
    output = module(torch.randn(1, 60, 24, dtype=torch.float64) + 1.0)
    heads = output - module.out_proj.bias  # values are all ones: every weighted mean is one, or zero without weight
    whole = module.out_proj.weight.unflatten(1, (module.num_heads, module.head_dim)).sum(dim=2)
    solution = torch.linalg.lstsq(whole, heads[0].T).solution
    assert ((solution - 1).abs().minimum(solution.abs()) < 1e-6).all()
