"""Linear forecast, a baseline that a network must beat to show more than averaging of the past."""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.lstf.data import Windows

MOST_WINDOWS = 8_192
STRENGTH = 0.01
"""Ridge penalty per window; values are standardized."""


class RidgeForecast:
    """Forecast each channel from its own past by ridge regression.

    Args:
        windows: windows of the training part; a large set is subsampled at equal distances.
    """

    def __init__(self, windows: Windows) -> None:
        count = min(len(windows), MOST_WINDOWS)
        batch = windows.__getitems__([i * len(windows) // count for i in range(count)])
        maps = []
        for past, future in zip(batch["past"].unbind(2), batch["future"].unbind(2), strict=True):
            x, y = _with_one(past).double(), future.double()
            penalty = STRENGTH * count * torch.eye(x.shape[1], dtype=torch.float64)
            maps.append(torch.linalg.solve(x.T @ x + penalty, x.T @ y))
        self.maps = torch.stack(maps)  # [C, N + 1, T]

    def __call__(self, past: Tensor) -> Tensor:
        """Forecast [B, T, C] from [B, N, C]."""
        rows = torch.stack([_with_one(channel) for channel in past.unbind(2)])
        return (rows.double() @ self.maps).permute(1, 2, 0).to(past.dtype)


def _with_one(past: Tensor) -> Tensor:
    return torch.cat([past, past.new_ones(len(past), 1)], dim=1)
