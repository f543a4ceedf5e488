"""The linear forecast: what a network must beat before it can be said to do more than average its past."""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.lstf.data import Windows

MOST_WINDOWS = 8_192
STRENGTH = 0.01
"""Of the penalty, for each window; values are standardised."""


class RidgeForecast:
    """Each channel's next steps from its own past by a linear map of its own, fitted by ridge regression.

    Args:
        windows: of the training part; of many, so many at equal distances.
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
        """[B, N, C] to [B, T, C]."""
        rows = torch.stack([_with_one(channel) for channel in past.unbind(2)])
        return (rows.double() @ self.maps).permute(1, 2, 0).to(past.dtype)


def _with_one(past: Tensor) -> Tensor:
    return torch.cat([past, past.new_ones(len(past), 1)], dim=1)
