"""The main sentence about the suite, on the README, the page and the gallery."""

from __future__ import annotations

import statistics

from cab.files.disk import sanitize_text
from cab.reports.suite_board import RECALL, BoardRow, Entry, SuiteBoard
from cab.scoring.statistics import Verdict
from cab.suite.cells import ANCHORS, SOFTMAX
from cab.suite.gain import CellGain

MATCHING = (Verdict.EQUIVALENT, Verdict.BETTER)
EXAMPLES = ("linear", "local")
"""Attentions that are named besides the best two."""
PATTERN = "CS"


def main_sentence(board: SuiteBoard) -> str:
    """Return the main finding: what attentions with a constant-size state recall, compared with softmax attention.

    Attentions without verified code, with a single seed or with a tuned learning rate are not counted.
    """
    rows = {row.attention: row for row in board.rows if _is_counted(row)}
    found = {name: entry for name, row in rows.items() if (entry := _recall(row)) and len(entry.gain.points) > 1}
    constant = {name: entry for name, entry in found.items() if _is_constant(rows[name])}
    if not constant:
        return "No attention with a constant-size state, verified code and several seeds has results in recall."
    matching = sorted(name for name, entry in constant.items() if entry.verdict in MATCHING)
    ranked = sorted(constant, key=lambda name: -constant[name].gain.retained)
    named = list(dict.fromkeys([*ranked[:2], *(name for name in EXAMPLES if name in constant)]))
    subject = f"{len(matching)} ({', '.join(matching)})" if matching else "none"
    sentences = [
        f"Of {len(constant)} attentions with a constant-size state, {subject} recalls like softmax attention.",
        f"Of 64 facts, {', '.join(f'{name} retains {_share(constant[name].gain)}' for name in named)}.",
    ]
    variants = [row for name, row in rows.items() if name not in ANCHORS and row.family == rows[SOFTMAX].family]
    equal = [row for row in variants if _matches(row)]
    if equal:
        steps = [entry.steps for row in equal if (entry := _recall(row)) and entry.steps]
        names = ", ".join(sorted(row.attention for row in equal))
        cost = f", after {min(steps):.1f} to {max(steps):.1f} times as many steps" if steps else ""
        sentences.append(f"Variants of softmax attention ({names}) match it in every causal task{cost}.")
    seconds = [run.cost.cpu_seconds for cell in board.results for runs in cell.runs.values() for run in runs.values()]
    known = [one for one in seconds if one is not None]
    length = f" for a median of {statistics.median(known):.0f} CPU seconds" if known else ""
    sentences.append(
        f"These networks have a width of 32 or 64 and are trained on generated data{length}; ranks on real text differ."
    )
    return sanitize_text(" ".join(sentences))


def _is_counted(row: BoardRow) -> bool:
    return row.verified == "yes" and not row.is_tuned


def _recall(row: BoardRow) -> Entry | None:
    entries = [entry for (task, _, pattern), entry in row.entries.items() if (task, pattern) == (RECALL, PATTERN)]
    return entries[0] if entries else None


def _is_constant(row: BoardRow) -> bool:
    return row.state is not None and not row.state.grows and row.attention not in ANCHORS


def _matches(row: BoardRow) -> bool:
    """Return whether an attention matches softmax attention in every causal self-attention cell."""
    verdicts = [entry.verdict for (_, _, pattern), entry in row.entries.items() if pattern == PATTERN]
    return bool(verdicts) and all(verdict in MATCHING for verdict in verdicts)


def _share(gain: CellGain) -> str:
    return f"{'at least ' if gain.is_lower_bound else ''}{max(gain.estimate.value, 0):.0f}%"
