"""`--figures`: a PNG and a PDF of each figure whose data are there, in the paper's order."""

import pandas as pd
import pytest

from cab.cli.main import main
from cab.records.files import PAPER_DIR
from cab.results.figures import benefit_figure


@pytest.mark.slow
def test_the_published_figures_are_drawn(tmp_path):
    costs = tmp_path / "costs.csv"
    rows = ["attention,pattern,phase,length,seconds,bytes"]
    for length in (256, 512, 1024, 2048, 4096):
        rows.append(f"vanilla,NS,forward,{length},{1e-9 * length**2 + 1e-4},{4 * length**2}")
        rows.append(f"abc,NS,forward,{length},{1e-6 * length + 5e-4},{900 * length}")
    costs.write_text("\n".join(rows) + "\n")
    command = ["leaderboard", str(PAPER_DIR), "--normalization", "official", "--figures"]
    assert main([*command, "--costs", str(costs), "--out", str(tmp_path)]) == 0
    found = {path.name for path in (tmp_path / "figures").iterdir()}
    names = ["figure2a-NS-forward-time", "figure2b-NS-forward-memory", "figure2c-NS-forward"]
    names += ["figure3a-published", *(f"figure4-published-{p}" for p in ("NS", "CS", "NC", "CC"))]
    assert found == {f"{name}.{suffix}" for name in names for suffix in ("png", "pdf")}
    for path in (tmp_path / "figures").iterdir():
        assert path.read_bytes().startswith(b"%PDF" if path.suffix == ".pdf" else b"\x89PNG")
        assert path.stat().st_size > 5_000


def test_bars_are_in_the_order_of_the_legend():
    benefit = pd.DataFrame({"task": ["lm"], "efficient": [1.0], "vanilla": [0.5], "without": [-2.0]})
    figure = benefit_figure(benefit, title="NS")
    (axes,) = figure.axes
    bars = sorted(axes.patches, key=lambda bar: axes.transData.transform((0, bar.get_y()))[1], reverse=True)
    assert [bar.get_width() for bar in bars] == [1.0, 0.5, -2.0]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["best efficient attention", "softmax attention", "no attention"]
