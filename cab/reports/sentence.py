"""The main sentence about the suite, on the README, the page and the gallery."""

from __future__ import annotations

from cab.files.disk import sanitize_text
from cab.reports.suite_board import RECALL, BoardRow, Entry, SuiteBoard
from cab.scoring.statistics import Verdict
from cab.suite.cells import ANCHORS, SOFTMAX

MATCHING = (Verdict.EQUIVALENT, Verdict.BETTER)
PATTERN = "CS"
EXAMPLES = ("linear", "local")
"""Attentions that are named besides the best two."""


def main_sentence(board: SuiteBoard) -> str:
    """Return the main finding: what attentions with a constant-size state recall, compared with softmax attention.

    Attentions without verified code, with a single seed or with a tuned learning rate are not counted, nor are own
    results of a reference attention.
    """
    counted = [row for row in board.rows if row.verified == "yes" and not row.is_tuned]
    rows = {row.attention: row for row in sorted(counted, key=lambda row: not row.own)}
    entries = {name: row.entry(RECALL, PATTERN) for name, row in rows.items()}
    recall = {name: entry for name, entry in entries.items() if entry and len(entry.gain.points) > 1}
    states = {name: rows[name].state for name in recall if name not in ANCHORS}
    constant = {name: recall[name] for name, state in states.items() if state and not state.grows}
    if not constant:
        return "No attention with a constant-size state, verified code and several seeds has results in recall."
    matching = sorted(name for name, entry in constant.items() if entry.verdict in MATCHING)
    undecided = sorted(name for name, entry in constant.items() if entry.verdict is Verdict.UNDECIDED)
    subject = (
        f"{len(matching)} ({', '.join(matching)}) match{'es' * (len(matching) == 1)}"
        if matching
        else f"{len(constant) - len(undecided)} are worse than"
    )
    is_open = f", {len(undecided)} are undecided ({', '.join(undecided)})" if undecided else ""
    ranked = sorted(constant, key=lambda name: -constant[name].gain.retained)
    named = dict.fromkeys([*ranked[:2], *(name for name in EXAMPLES if name in constant)])
    seeds = min(len(constant[name].gain.points) for name in named)
    sentences = [
        f"Of {len(constant)} attentions with a constant-size decode state, {subject} softmax attention in causal "
        f"recall{is_open}.",
        f"Of 64 facts, {', '.join(f'{name} retains {_share(constant[name])}' for name in named)} (at least {seeds} "
        "seeds each).",
    ]
    variants = [row for name, row in rows.items() if name not in ANCHORS and row.family == rows[SOFTMAX].family]
    if equal := sorted((row for row in variants if _matches(row)), key=lambda row: row.attention):
        names = ", ".join(row.attention for row in equal)
        steps = [entry.steps for row in equal for entry in row.entries.values() if entry.steps]
        needed = f", after {min(steps):.1f} to {max(steps):.1f} times as many steps" if steps else ""
        sentences.append(f"Variants of softmax attention ({names}) match it in every causal task{needed}.")
    sentences.append(
        "The networks have a width of 32 or 64 and train on generated data for minutes; on real text, small networks "
        "rank attentions differently."
    )
    return sanitize_text(" ".join(sentences))


def _matches(row: BoardRow) -> bool:
    """Return whether an attention matches softmax attention in every causal self-attention cell."""
    verdicts = [entry.verdict for (_, _, pattern), entry in row.entries.items() if pattern == PATTERN]
    return bool(verdicts) and all(verdict in MATCHING for verdict in verdicts)


def _share(entry: Entry) -> str:
    return f"{'at least ' if entry.gain.is_lower_bound else ''}{max(entry.gain.estimate.value, 0):.0f}%"
