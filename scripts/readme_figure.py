"""Write committed results into README.md, the gallery and the guide to the paper, and draw the README's figure.

``python scripts/readme_figure.py`` replaces the text between ``<!-- results -->`` and ``<!-- /results -->`` in
README.md, docs/results/gallery.md and docs/howto/reproduce-the-paper.md, and writes docs/assets/quality-and-cost.svg.
tests/test_readme.py fails if they differ from the records in results.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
import pandas as pd

from cab import load_results
from cab.records.results import REFERENCE_DIRS
from cab.reports.board_tables import board_columns
from cab.reports.figures import frontier_figure
from cab.reports.suite_board import (
    FRONTIER_COSTS,
    SuiteBoard,
    frontier_points,
    main_finding,
    single_seeds,
    suite_board,
)

ROOT = Path(__file__).parents[1]
README, GALLERY = ROOT / "README.md", ROOT / "docs" / "results" / "gallery.md"
PAPER = ROOT / "docs" / "howto" / "reproduce-the-paper.md"
FIGURE = ROOT / "docs" / "assets" / "quality-and-cost.svg"
REPRODUCED = ROOT / "results" / "reproduced"
PUBLISHED = ROOT / "results" / "paper" / "informer.csv"
SHOWN = (
    *("vanilla", "mla", "sigmoid", "differential", "luong", "none", "linear", "performer", "abc", "cosformer"),
    *("local", "longformer", "linformer", "s4d", "ssd", "gla", "retention", "deltanet", "rwkv7", "based", "efficient"),
    *("dpfp", "rfa", "norm_attention", "nsa", "reformer"),
)
"""Attentions of the README's table; the gallery shows all."""
GAIN_COLUMNS = ("K", "time", "memory", "state")
"""First words of the columns of the tables in README and gallery."""
BLOCK = re.compile(r"(?<=<!-- results -->\n).*?(?=\n<!-- /results -->)", re.DOTALL)


def reference_board(folders: Iterable[Path] = REFERENCE_DIRS) -> SuiteBoard:
    """Return the board of the bundled reference results."""
    board = suite_board(load_results(folder for folder in folders if folder.is_dir()))
    assert board is not None
    return board


def readme_text(board: SuiteBoard) -> str:
    """Return the README's finding and table."""
    rows = board.table[board.table["attention"].isin(SHOWN)]
    return f"**{main_finding(board)}**\n\n{gain_table(board, rows)}"


def gain_table(board: SuiteBoard, rows: pd.DataFrame) -> str:
    """Return a table with K per pattern, and the cost at 8,192 tokens."""
    columns = [each for each in board_columns(board.patterns) if each.label.partition(" ")[0] in GAIN_COLUMNS]
    header = ["Attention", *(each.label[0].upper() + each.label[1:] for each in columns)]
    lines = [f"| {' | '.join(header)} |", "|" + " --- |" * len(header)]
    for row in rows.to_dict("records"):
        cells = [column.cell({str(name): value for name, value in row.items()}) for column in columns]
        texts = [f"**{cell.text}**" if cell.best else cell.text for cell in cells]
        texts = [text + (f" ({cell.detail})" if cell.detail else "") for text, cell in zip(texts, cells, strict=True)]
        lines.append(f"| `{row['attention']}` | {' | '.join(texts)} |")
    return "\n".join(lines)


def reproduced_text() -> str:
    """Return a table of the published errors of Informer and of those in :data:`REPRODUCED`."""
    runs = load_results(REPRODUCED)
    runs["attention"] = [record.cell["attention"].partition("(")[0] for record in runs.record]
    lines = ["| Features, attention | Seeds | MSE | Published | MAE | Published |", "|" + " --- |" * 6]
    for each in pd.read_csv(PUBLISHED).itertuples():
        own = runs[(runs.config_variant == each.features) & (runs.attention == each.attention)]
        texts = [f"{each.features}, `{each.attention}`", str(own.seed.nunique() or "–")]
        for metric in ("mse", "mae"):
            values = own[own.metric == metric].value
            texts.append(f"{values.mean():.3f} ± {values.std():.3f}" if len(values) else "–")
            texts.append(f"{getattr(each, metric):.3f}")
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def draw(board: SuiteBoard, path: Path) -> None:
    """Write the scatter plot of K against time, for the pattern in which the most attentions have several seeds."""
    points = {pattern: frontier_points(board, pattern, "time") for pattern in board.patterns}
    pattern = max(points, key=lambda name: len(points[name].keys() - single_seeds(board, name)))
    title = f"Share of softmax's gain retained against time, pattern {pattern}"
    single = single_seeds(board, pattern)
    figure = frontier_figure(
        points[pattern], title=title, label=FRONTIER_COSTS["time"][0], single=single, size=(7, 3.6)
    )
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cab", "font.family": "sans-serif"}):
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Write the documents and the figure."""
    board = reference_board()
    draw(board, FIGURE)
    texts = {README: readme_text(board), GALLERY: gain_table(board, board.table), PAPER: reproduced_text()}
    for path, text in texts.items():
        content = path.read_text()
        assert len(BLOCK.findall(content)) == 1, path
        path.write_text(BLOCK.sub(lambda _, text=text: text, content))  # type: ignore[misc]
        sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
