"""Batch normalization over processes keeps the variance of large numbers."""

import torch
from torch import nn

from engines.torch.parallel import GlobalBatchNorm1d


def test_the_variance_is_right_away_from_the_origin(monkeypatch):
    monkeypatch.setattr("torch.distributed.all_reduce", lambda sums: sums)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    x = 1000 + 0.1 * torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    alone, shared = nn.BatchNorm1d(3), GlobalBatchNorm1d(3)
    alone(x)
    shared(x)
    torch.testing.assert_close(shared.running_var, alone.running_var, rtol=1e-4, atol=0)
    torch.testing.assert_close(shared.running_mean, alone.running_mean)
