"""The findings about the suite, on the README, the page and the gallery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from cab.files.disk import sanitize_text
from cab.results.board import gain_fields
from cab.results.cells import ANCHORS, TUNED
from cab.results.gain import MATCHING
from cab.results.statistics import Verdict

RESULTS = {
    Verdict.BETTER: "are better",
    Verdict.WORSE: "are worse than softmax attention",
    Verdict.EQUIVALENT: "are equivalent to it",
    Verdict.SOLVED: "solve the cell in every seed",
    Verdict.UNDECIDED: "are undecided",
}
EXAMPLES = ("linear", "local")
"""Attentions that are named besides the best two."""


def main_sentence(board: pd.DataFrame) -> str:
    """Return all of :func:`findings`."""
    return " ".join(findings(board))


def findings(board: pd.DataFrame) -> list[str]:
    """Return what attentions with a constant-size state recall, compared with softmax attention, and then details.

    Attentions without verified code, with a single seed or with a tuned learning rate are not counted, nor are own
    results of a reference attention.
    """
    counted = board[(board["verified"] == "yes") & ~board["attention"].str.endswith(TUNED)]
    counted = counted.sort_values("own", ascending=False, kind="stable").drop_duplicates("attention", keep="last")
    recall = {}
    for row in counted[~counted["attention"].isin(ANCHORS)].to_dict("records"):
        if row.get("CS.recall.seeds", 0) > 1 and row["suite_state_grows"] is False:
            recall[row["attention"]] = gain_fields(row, "CS.recall")
    if not recall:
        return ["No attention with a constant-size state, verified code and several seeds has results in recall."]
    verdicts = {word: sorted(name for name, cell in recall.items() if cell["verdict"] == word) for word in Verdict}
    matching = [name for verdict in MATCHING for name in verdicts[verdict]]
    parts = [f"{len(verdicts[Verdict.WORSE])} are worse than softmax attention in causal recall"]
    parts += [f"{_counted(matching)} match{'es' * (len(matching) == 1)} it"] if matching else []
    undecided = verdicts[Verdict.UNDECIDED]
    parts += [f"{_counted(undecided)} {'are' if len(undecided) > 1 else 'is'} undecided"] if undecided else []
    ranked = sorted(recall, key=lambda name: -min(max(recall[name]["K"], 0), 100))
    named = dict.fromkeys([*ranked[:2], *(name for name in EXAMPLES if name in recall)])
    seeds = min(int(recall[name]["seeds"]) for name in named)
    shares = ", ".join(f"{name} retains {_share(recall[name])}" for name in named)
    details = (
        f"Of 64 facts, {shares} (at least {seeds} seeds each). {_decided(counted)} The networks have a width of 32 or "
        "64 and train on generated data for minutes; on real text, small networks rank attentions differently."
    )
    main = f"Of {len(recall)} attentions with a constant-size decode state, {', '.join(parts)}."
    return [sanitize_text(text) for text in (main, details)]


def _decided(board: pd.DataFrame) -> str:
    """Return how many results of an attention in a cell, with several seeds, have each verdict."""
    verdicts = Counter(value for name in board if str(name).endswith(".vs_softmax") for value in board[name])
    counts = {verdict: verdicts[verdict] for verdict in RESULTS if verdicts[verdict]}
    words = ", ".join(f"{count} {RESULTS[verdict]}" for verdict, count in counts.items())
    return f"Of all {sum(counts.values())} results of verified code with several seeds in a core cell, {words}."


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} ({', '.join(names)})"


def _share(cell: Mapping[str, Any]) -> str:
    return f"{'at least ' if 'unfinished' in cell['note'] else ''}{max(cell['K'], 0):.0f}%"
