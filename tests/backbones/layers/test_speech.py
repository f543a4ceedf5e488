"""Batch norm with padding equals batch norm of the selected positions, in one process and in several."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from backbones.layers.speech import ConvNorm, MaskedBatchNorm1d
from engines.torch.parallel import GlobalBatchNorm1d

LENGTHS = torch.tensor([7, 1, 4])
REAL = torch.arange(7) < LENGTHS[:, None]


def results(norm: nn.BatchNorm1d, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return outputs at the real positions, statistics and gradients."""
    gradients = torch.autograd.grad((y * torch.arange(y.numel()).view_as(y).cos()).sum(), [x, *norm.parameters()])
    return [y, norm.running_mean, norm.running_var, norm.num_batches_tracked, *gradients]  # type: ignore[list-item]


@pytest.mark.parametrize("kind", [MaskedBatchNorm1d, GlobalBatchNorm1d])
def test_the_statistics_are_those_of_the_real_positions(
    kind: type[nn.BatchNorm1d], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.all_reduce", lambda sums: sums)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    masked, plain = kind(5, momentum=0.3), nn.BatchNorm1d(5, momentum=0.3)
    for norm in (masked, plain):
        norm.load_state_dict({**norm.state_dict(), "weight": torch.arange(5) - 1.5, "bias": torch.arange(5) / 3})
    x = (3 + torch.randn(3, 7, 5)).masked_fill(~REAL[..., None], 1e4).requires_grad_()
    found = results(masked, x, masked(x.transpose(1, 2), ~REAL).transpose(1, 2)[REAL])
    expected = results(plain, x, plain(x[REAL]))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert (found[4][~REAL] == 0).all()


def test_outputs_in_training_do_not_depend_on_the_padding() -> None:
    layer = ConvNorm(5, 6, 3, activation="relu", dropout=0.0)
    x = torch.randn(3, 7, 5)
    padded = torch.cat([x.masked_fill(~REAL[..., None], 1e4), torch.full((3, 2, 5), -1e4)], dim=1)
    mask = torch.cat([~REAL, torch.ones(3, 2, dtype=torch.bool)], dim=1)
    torch.testing.assert_close(layer(padded, mask)[:, :7][REAL], layer(x, ~REAL)[REAL])
