"""The main sentence about the suite, on the README, the page and the gallery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from cab.files.disk import sanitize_text
from cab.reports.suite_board import RECALL, BoardRow, Entry, SuiteBoard
from cab.results.cells import ANCHORS, SOFTMAX
from cab.results.gain import MATCHING
from cab.results.statistics import Verdict

PATTERN = "CS"
RESULTS = {
    Verdict.WORSE: "are worse than softmax attention",
    Verdict.EQUIVALENT: "are equivalent to it",
    Verdict.BETTER: "are better",
    Verdict.SOLVED: "solve the cell in every seed",
    Verdict.UNDECIDED: "are undecided",
}
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
    verdicts: dict[Verdict | None, list[str]] = {}
    for name in sorted(constant):
        verdicts.setdefault(constant[name].verdict, []).append(name)
    matching = [name for verdict in MATCHING for name in verdicts.get(verdict, ())]
    parts = [f"{len(verdicts.get(Verdict.WORSE, ()))} are worse than softmax attention in causal recall"]
    parts += [f"{_counted(matching)} match{'es' * (len(matching) == 1)} it"] if matching else []
    undecided = verdicts.get(Verdict.UNDECIDED, [])
    parts += [f"{_counted(undecided)} {'are' if len(undecided) > 1 else 'is'} undecided"] if undecided else []
    ranked = sorted(constant, key=lambda name: -constant[name].gain.retained)
    named = dict.fromkeys([*ranked[:2], *(name for name in EXAMPLES if name in constant)])
    seeds = min(len(constant[name].gain.points) for name in named)
    sentences = [
        f"Of {len(constant)} attentions with a constant-size decode state, {', '.join(parts)}.",
        f"Of 64 facts, {', '.join(f'{name} retains {_share(constant[name])}' for name in named)} (at least {seeds} "
        "seeds each).",
    ]
    variants = [row for name, row in rows.items() if name not in ANCHORS and row.family == rows[SOFTMAX].family]
    if equal := sorted((row for row in variants if _matches(row)), key=lambda row: row.attention):
        names = ", ".join(row.attention for row in equal)
        entries_of = [(key, entry) for row in equal for key, entry in row.entries.items()]
        steps = [entry.steps for (_, _, pattern), entry in entries_of if pattern == PATTERN and entry.steps]
        needed = f", after {min(steps):.1f} to {max(steps):.1f} times as many steps" if steps else ""
        sentences.append(f"Variants of softmax attention ({names}) match it in every causal task{needed}.")
    sentences.append(_decided(rows.values()))
    sentences.append(
        "The networks have a width of 32 or 64 and train on generated data for minutes; on real text, small networks "
        "rank attentions differently."
    )
    return sanitize_text(" ".join(sentences))


def _matches(row: BoardRow) -> bool:
    """Return whether an attention matches softmax attention in every causal self-attention cell."""
    verdicts = [entry.verdict for (_, _, pattern), entry in row.entries.items() if pattern == PATTERN]
    return bool(verdicts) and all(verdict in MATCHING for verdict in verdicts)


def _decided(rows: Iterable[BoardRow]) -> str:
    """Return how many results of an attention in a cell, with several seeds, have each verdict."""
    verdicts = Counter(entry.verdict for row in rows for entry in row.entries.values())
    tested = [verdict for verdict in Verdict if verdicts[verdict] and verdict is not Verdict.ONE_SEED]
    counts = ", ".join(f"{verdicts[verdict]} {RESULTS[verdict]}" for verdict in tested)
    total = sum(verdicts[verdict] for verdict in tested)
    return f"Of all {total} results of verified code with several seeds in a core cell, {counts}."


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})"


def _share(entry: Entry) -> str:
    return f"{'at least ' if entry.gain.is_lower_bound else ''}{max(entry.gain.estimate.value, 0):.0f}%"
