"""Plots of forecasts."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def draw_forecasts(past: np.ndarray, future: np.ndarray, forecast: np.ndarray, *, title: str, path: Path) -> None:
    """Plot the last channel of [windows, steps, channels] arrays, one panel per window: past, truth and forecast."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.1 * len(past)), layout="tight")
    axes = figure.subplots(len(past), 1, squeeze=False)[:, 0]
    for axis, before, after, guess in zip(axes, past[..., -1], future[..., -1], forecast[..., -1], strict=True):
        shown = before[-3 * len(after) :]
        steps = np.arange(len(after)) + 1
        axis.plot(np.arange(len(shown)) - len(shown) + 1, shown, color="0.55", label="past")
        axis.plot(steps, after, color="black", label="truth")
        axis.plot(steps, guess, color="tab:orange", label="forecast")
        axis.axvline(0.5, color="0.8", linewidth=1)
        axis.set_ylabel("standardized")
    axes[0].legend(loc="upper left", ncols=3, frameon=False)
    axes[-1].set_xlabel("forecast step")
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
