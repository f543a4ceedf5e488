"""A masked mean is the mean of the selected values, and so are its gradients."""

from __future__ import annotations

import pytest
import torch

from tasks.means import masked_mean


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 4)])
def test_it_is_the_mean_of_what_is_selected(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, requires_grad=True)
    mask = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])
    found, expected = masked_mean(x, mask), x[mask].mean()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(mean, x)[0] for mean in (found, expected)))


def test_what_is_masked_may_be_anything() -> None:
    x = torch.tensor([[1.0, torch.nan, 3.0, torch.inf]])
    assert masked_mean(x, torch.tensor([[True, False, True, False]])) == 2.0


def test_the_mean_of_nothing_is_zero() -> None:
    assert masked_mean(torch.ones(2, 3), torch.zeros(2, 3, dtype=torch.bool)) == 0.0
