"""Draw the README's figure and print its table, from the committed results.

The quality comes from results/mini (task LSTF, pattern CS), the cost from results/efficiency (forward pass).
``python scripts/readme_figure.py`` writes docs/assets/quality-and-cost.svg and prints the table in Markdown.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from cab import load_results

ROOT = Path(__file__).parents[1]
COSTS = ROOT / "results" / "efficiency" / "costs.csv"
RUN = "roof_cs"
FIGURE = ROOT / "docs" / "assets" / "quality-and-cost.svg"
LENGTHS = (512, 2048, 8192)
SHOWN = ("vanilla", "linear", "ssd", "performer", "gla", "local")
LABEL_OFFSETS = {
    "performer": (-6, -12),
    "linear": (-30, 6),
    "abc": (-8, -12),
    "cosformer": (4, 5),
    "ssd": (4, 5),
    "s4d": (4, -12),
    "retention": (-22, -13),
}
"""Offsets of labels from their points, in points, where the default would overlap another label."""


def table(results: Path = ROOT / "results" / "mini", costs: Path = COSTS) -> pd.DataFrame:
    """Return one row per attention: MSE, its standard deviation over seeds, retained gain in %, and relative times."""
    runs = load_results(results).query("task == 'lstf' and pattern == 'CS' and metric == 'mse'")
    rows = runs.groupby("attention").value.agg(["mean", "std"])
    means = rows["mean"].to_dict()
    softmax, without = means["vanilla"], means["none"]
    rows["retained"] = 100 * (without - rows["mean"]) / (without - softmax)
    times = pd.read_csv(costs).query("run == @RUN and phase == 'forward' and kind == 'attention'")
    relative = times.pivot_table(index="attention", columns="length", values="relative_to_softmax")
    return rows.join(relative[list(LENGTHS)]).sort_values("mean")


def markdown(rows: pd.DataFrame) -> str:
    """Return the README's table."""
    lines = [
        f"| Attention | MSE | Gain retained | {' | '.join(f'Time, {n:,} tokens' for n in LENGTHS)} |",
        f"| --- | --- | --- | {' | '.join('---' for _ in LENGTHS)} |",
    ]
    for name, row in rows.loc[[name for name in rows.index if name in SHOWN]].iterrows():
        quality = f"{row['mean']:.4f} ± {row['std']:.4f} | {row['retained']:.0f}%"
        lines.append(f"| `{name}` | {quality} | {' | '.join(f'{row[n]:.2f}' for n in LENGTHS)} |")
    return "\n".join(lines)


def draw(rows: pd.DataFrame, path: Path = FIGURE) -> None:
    """Write the scatter plot of quality against cost."""
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    points = rows.dropna()
    axes.axhline(100, color="0.8", linewidth=1, zorder=0)
    axes.axhline(0, color="0.8", linewidth=1, zorder=0)
    axes.scatter(points[LENGTHS[-1]], points["retained"], s=28, color="tab:blue")
    for name, row in points.iterrows():
        offset = LABEL_OFFSETS.get(str(name), (6, -3))
        axes.annotate(str(name), (row[LENGTHS[-1]], row["retained"]), offset, textcoords="offset points", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(0.13, 1.4)
    axes.set_ylim(-8, 112)
    ticks = [0.2, 0.5, 1.0]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel(f"time of a forward pass at {LENGTHS[-1]:,} tokens, relative to fused softmax attention")
    axes.set_ylabel("softmax gain retained (%)")
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cab", "font.family": "sans-serif"}):
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    found = table()
    draw(found)
    sys.stdout.write(markdown(found) + "\n")
