"""Write committed results into README.md and the guide to the paper, and draw the README's figure.

``python -m tools.site.readme_figure`` replaces the text between ``<!-- results -->`` and ``<!-- /results -->`` in
README.md and docs/howto/reproduce-the-paper.md, and writes docs/assets/recall-and-state.svg. If they differ from the
records in results, tests/project/test_readme.py fails.
"""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

import matplotlib as mpl
import pandas as pd

from cab import load_results
from cab.records.files import REFERENCE_DIRS
from cab.results.figures import INK, MUTED, POSITIVE, frontier_figure
from cab.results.suite_board import Suite, main_sentence, recall_points, state_size, suite_of
from cab.results.summarize import summarize
from tools.markdown import table

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAPER = ROOT / "docs" / "howto" / "reproduce-the-paper.md"
FIGURE = ROOT / "docs" / "assets" / "recall-and-state.svg"
REPRODUCED = ROOT / "results" / "reproduced"
PUBLISHED = ROOT / "results" / "paper" / "informer.csv"
READABLE = {INK: "#7d8590", MUTED: "#8b949e", POSITIVE: "#2f81f7"}
"""Colors of the figure that can be read on white and on dark backgrounds."""
BLOCK = re.compile(r"(?<=<!-- results -->\n).*?(?=\n<!-- /results -->)", re.DOTALL)


@functools.cache
def reference_suite() -> Suite:
    """Return the bundled reference results of the suite."""
    suite = suite_of(load_results(REFERENCE_DIRS))
    assert suite is not None
    return suite


def readme_text(suite: Suite) -> str:
    """Return the first of the main sentences, and the figure."""
    first, *_ = main_sentence(suite).split(". ")
    return f"{first}.\n\n![Recall against the size of the decode state](docs/assets/{FIGURE.name})"


def reproduced_text() -> str:
    """Return a table of the published errors of Informer and of those in :data:`REPRODUCED`."""
    results = load_results(REPRODUCED)
    results["attention"] = results["label"].str.partition("(")[0]
    means = summarize(results, ["config_variant", "attention", "metric"]).set_index(["config_variant", "attention"])
    rows = []
    for each in pd.read_csv(PUBLISHED).itertuples():
        place = (each.features, each.attention)
        own = means.loc[[place]].set_index("metric") if place in means.index else means[:0]
        texts = [f"{each.features}, `{each.attention}`", str(own["seeds"].max()) if len(own) else "–"]
        for metric in ("mse", "mae"):
            texts.append("{mean:.3f} ± {sd:.3f}".format(**own.loc[metric]) if metric in own.index else "–")
            texts.append(f"{getattr(each, metric):.3f}")
        rows.append(texts)
    return table("Features, attention | Seeds | MSE | Published | MAE | Published", rows)


def draw(board: pd.DataFrame, path: Path) -> None:
    """Write the scatter plot of recall against the size of the decode state."""
    label = "numbers of the decode state of a layer in the same networks"
    points = recall_points(board, state_size(board))
    figure = frontier_figure(points, title="Recall of 64 facts, causal", label=label, size=(7, 4.2))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cab", "font.family": "sans-serif"}):
        figure.savefig(path, metadata={"Date": None}, transparent=True)
    text = path.read_text()
    for color, readable in READABLE.items():
        text = text.replace(color, readable)
    path.write_text(text)


def main() -> None:
    """Write the documents and the figure."""
    suite = reference_suite()
    draw(suite.board, FIGURE)
    texts = {README: readme_text(suite), PAPER: reproduced_text()}
    for path, text in texts.items():
        content = path.read_text()
        assert len(BLOCK.findall(content)) == 1, path
        path.write_text(BLOCK.sub(lambda _, text=text: text, content))  # type: ignore[misc]
        sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
