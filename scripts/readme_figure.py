"""Write committed results into README.md, the gallery and the guide to the paper, and draw the README's figure.

``python scripts/readme_figure.py`` replaces the text between ``<!-- results -->`` and ``<!-- /results -->`` in
README.md, docs/results/gallery.md and docs/howto/reproduce-the-paper.md, and writes docs/assets/recall-and-state.svg.
tests/test_readme.py fails if they differ from the records in results.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
import pandas as pd

from cab import load_results
from cab.records.results import REFERENCE_DIRS
from cab.reports.board_tables import board_columns
from cab.reports.figures import frontier_figure
from cab.reports.sentence import main_sentence
from cab.reports.suite_board import Ability, SuiteBoard, state_points, suite_board

ROOT = Path(__file__).parents[1]
README, GALLERY = ROOT / "README.md", ROOT / "docs" / "results" / "gallery.md"
PAPER = ROOT / "docs" / "howto" / "reproduce-the-paper.md"
FIGURE = ROOT / "docs" / "assets" / "recall-and-state.svg"
REPRODUCED = ROOT / "results" / "reproduced"
PUBLISHED = ROOT / "results" / "paper" / "informer.csv"
BLOCK = re.compile(r"(?<=<!-- results -->\n).*?(?=\n<!-- /results -->)", re.DOTALL)


def reference_board(folders: Iterable[Path] = REFERENCE_DIRS) -> SuiteBoard:
    """Return the board of the bundled reference results."""
    board = suite_board(load_results(folder for folder in folders if folder.is_dir()))
    assert board is not None
    return board


def readme_text(board: SuiteBoard) -> str:
    """Return the main sentence and the figure."""
    return f"{main_sentence(board)}\n\n![Recall against the size of the decode state](docs/assets/{FIGURE.name})"


def gallery_text(board: SuiteBoard) -> str:
    """Return the main sentence, and a table of abilities and state per pattern."""
    tables = [
        f"### {pattern}\n\n{_table(board, [each for each in board.abilities if each.pattern == pattern])}"
        for pattern in board.patterns
    ]
    return "\n\n".join([main_sentence(board), *tables])


def _table(board: SuiteBoard, abilities: Sequence[Ability]) -> str:
    columns = [column for column in board_columns(abilities) if not column.group]
    header = ["Attention", *(column.label for column in columns)]
    lines = [f"| {' | '.join(header)} |", "|" + " --- |" * len(header)]
    family = ""
    for row in board.rows:
        if all(ability.key not in row.entries for ability in abilities):
            continue
        if row.family != family:
            family = row.family
            lines.append(f"| *{family}* |" + " |" * len(columns))
        cells = [column.cell({"row": row}) for column in columns]
        texts = [f"**{cell.text}**" if cell.best else cell.text for cell in cells]
        texts = [text + (f" {cell.detail}" if cell.detail else "") for text, cell in zip(texts, cells, strict=True)]
        lines.append(f"| `{row.attention}` | {' | '.join(texts)} |")
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
    """Write the scatter plot of recall against the size of the decode state."""
    points = state_points(board)
    figure = frontier_figure(
        {name: (state, k) for name, (state, k, _) in points.items()},
        title="Recall of 64 facts, causal",
        label="numbers of the decode state of a layer in the same networks",
        single={name for name, (_, _, is_single) in points.items() if is_single},
        size=(7, 3.6),
    )
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "cab", "font.family": "sans-serif"}):
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Write the documents and the figure."""
    board = reference_board()
    draw(board, FIGURE)
    texts = {README: readme_text(board), GALLERY: gallery_text(board), PAPER: reproduced_text()}
    for path, text in texts.items():
        content = path.read_text()
        assert len(BLOCK.findall(content)) == 1, path
        path.write_text(BLOCK.sub(lambda _, text=text: text, content))  # type: ignore[misc]
        sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
