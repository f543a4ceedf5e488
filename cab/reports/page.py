"""The leaderboard as a single, self-contained HTML file: tables, figures and the facts of every record.

All text from results is escaped by Jinja or matplotlib, and a content security policy blocks foreign scripts.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from cab.files.disk import sanitize_text
from cab.records.results import LEGEND
from cab.registry.registries import ATTENTIONS
from cab.reports.board_cells import cell_blocks
from cab.reports.board_table import board_table
from cab.reports.card import summary
from cab.reports.frontier import frontier_figures
from cab.reports.records import record_facts
from cab.reports.sections import efficiency_blocks, suite_section
from cab.reports.suite_board import SuiteBoard, board_facts, main_finding
from cab.reports.suites import printable_results
from cab.scoring import NORMALIZATIONS
from cab.suite.descriptions import metric_meanings

if TYPE_CHECKING:
    import pandas as pd

    from cab.reports.leaderboard import Board
    from cab.reports.task_sections import FilledSection


def write_page(
    boards: Sequence[Board],
    out: Path,
    *,
    normalization: str,
    suite: SuiteBoard | None = None,
    unscored: pd.DataFrame | None = None,
    sections: Sequence[FilledSection] = (),
    costs: pd.DataFrame | None = None,
    skipped: Sequence[str] = (),
) -> Path:
    """Write ``index.html`` into ``out``.

    Args:
        boards: scored suites, one section each.
        out: output folder.
        suite: K of the attentions in the suite.
        normalization: as in :func:`cab.scoring.score_table`; stated on the page.
        unscored: results of tasks outside the index, as returned by :func:`cab.load_results`.
        sections: sections of these tasks.
        costs: costs by length, columns attention, pattern, phase, length, seconds, bytes.
        skipped: messages about skipped files.
    """
    import pandas as pd

    others = [] if unscored is None else [printable_results(unscored)]
    results = pd.concat([*(board.suite.results for board in boards), *others])
    script = _source("page.js")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    html = environment.from_string(_source("page.html")).render(
        title="Attention leaderboard",
        facts=_counts(results),
        board=None if suite is None else _board(suite),
        suites=[suite_section(board) for board in boards],
        sections=sections,
        efficiency=[] if costs is None else list(efficiency_blocks(costs)),
        records=record_facts(results, out),
        cards=[summary(name) for name in _registered(boards)],
        method=_method(normalization),
        skipped=[sanitize_text(line) for line in skipped],
        css=Markup(_source("page.css")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    out.mkdir(parents=True, exist_ok=True)
    path = out / "index.html"
    path.write_text(html, encoding="utf-8")
    return path


def _board(suite: SuiteBoard) -> dict[str, Any]:
    tasks = {each.cell.task for each in suite.results if each.runs}
    return {
        "finding": main_finding(suite),
        "facts": list(board_facts(suite)),
        "patterns": suite.patterns,
        "complexities": sorted({row.complexity for row in suite.rows} - {""}),
        "table": board_table(suite),
        "figures": list(frontier_figures(suite)),
        "cells": list(cell_blocks(suite)),
        "metrics": [
            (f"{task} {name}", meaning) for (task, name), meaning in metric_meanings().items() if task in tasks
        ],
    }


def _registered(boards: Sequence[Board]) -> list[str]:
    """Return the registered attentions among the rows of the boards, in alphabetical order."""
    names = {str(name) for board in boards for name in board.table["attention"]}
    return sorted(names.intersection(ATTENTIONS.names()))


def _source(name: str) -> str:
    return resources.files("cab.reports").joinpath(name).read_text(encoding="utf-8")


def _counts(results: pd.DataFrame) -> list[str]:
    runs = results.drop_duplicates(
        ["file", "task", "dataset", "config_variant", "backbone", "pattern", "attention", "seed"]
    )
    names = {"attention": results["attention"].nunique(), "task": results["task"].nunique()}
    return [f"{len(runs):,} results", *(f"{count} {name}{'s' * (count != 1)}" for name, count in names.items())]


def _method(normalization: str) -> list[tuple[str, str]]:
    return [
        (
            "K",
            "Score of the suite: the share of softmax's gain over no attention that an attention retains, in percent, "
            "against frozen results of both. Each core cell is clipped to 0 to 100, then averaged over cells and "
            "tasks. No attention is significantly better than those in bold (Holm over all pairs, 95%, 2 points).",
        ),
        (
            "Compositional index",
            "Normalized score in standard deviations. Each metric of a task is normalized, with the sign changed if "
            "lower is better, then averaged over the task. The average column is the mean over tasks. 0 is the average "
            "attention. An attention without a result in any task has no average.",
        ),
        ("Normalization", f"{normalization}: {NORMALIZATIONS[normalization]}."),
        (
            "Intervals",
            "95% confidence intervals over the seeds of each attention (Student); omitted for a single seed. ± on raw "
            "metrics is the standard deviation over seeds. The dashed line in a figure is softmax attention.",
        ),
        (
            "Unverified attentions",
            f"{LEGEND}. Future tokens or padding may affect its score.",
        ),
        (
            "Comparability",
            "Scores are compared within one preset, and for real and synthetic data separately. The best value of each "
            "column is bold.",
        ),
        ("\N{EN DASH}", "Missing value, explained in a note below the table."),
    ]
