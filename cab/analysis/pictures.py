"""Figures of the analyses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cab.analysis.dilution import Curve
from cab.analysis.gradients import QUANTILES


def draw_dilution(curves: Sequence[Curve], title: str, path: Path) -> None:
    """Plot the share of attention by share of neighbors, one line per layer."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axis = figure.subplots()
    for number, curve in enumerate(curves, start=1):
        share = [(i + 1) / len(curve.mass) for i in range(len(curve.mass))]
        axis.plot(share, curve.mass.tolist(), label=f"layer {number}: area {curve.area:.3f}")
    axis.plot([0, 1], [0, 1], color="0.7", linestyle="--", label="uniform")
    axis.set_xlabel("share of visible tokens, nearest first")
    axis.set_ylabel("share of attention")
    axis.set_title(title, fontsize="medium")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=110)


def draw_gradients(
    layers: Sequence[Mapping[str, float | str]], norms: Sequence[Mapping[str, float]], title: str, path: Path
) -> None:
    """Plot quantiles of abs(dL/ds) by layer and, if recorded, the gradient norm over training steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10 if norms else 5.5, 4.5), layout="constrained")
    axes = figure.subplots(1, 2 if norms else 1, squeeze=False)[0]
    measured = [(number, layer) for number, layer in enumerate(layers, start=1) if "largest" in layer]
    for name in QUANTILES:
        axes[0].plot([number for number, _ in measured], [layer[name] for _, layer in measured], "o-", label=name)
    axes[0].set_yscale("log")
    axes[0].set_xticks([number for number, _ in measured])
    axes[0].set_xlabel("layer")
    axes[0].set_ylabel("|dL/ds|")
    axes[0].legend(frameon=False)
    if norms:
        for name in (key for key in norms[0] if key not in ("step", "loss")):
            axes[1].plot([row["step"] for row in norms], [row[name] for row in norms], label=name)
        axes[1].set_yscale("log")
        axes[1].set_xlabel("step")
        axes[1].set_ylabel("gradient norm")
        axes[1].legend(frameon=False, fontsize="small")
    figure.suptitle(title, fontsize="medium")
    figure.savefig(path, dpi=110)
