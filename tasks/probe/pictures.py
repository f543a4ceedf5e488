"""Predictions as text."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from tasks.probe.batches import IGNORE_INDEX, ProbeBatch


def write_answers(batch: ProbeBatch, guesses: Tensor, path: Path) -> None:
    """Write examples as numbers: context, queries, and each answer as [truth|prediction]."""
    text = []
    for context, queries, answers, guessed in zip(*(x.tolist() for x in (*batch, guesses)), strict=True):
        results = [f"[{a}|{g}]" if a != IGNORE_INDEX else "." for a, g in zip(answers, guessed, strict=True)]
        text.append(f"context {_places(context)}\nqueries {_places(queries)}\nanswers {' '.join(results)}\n")
    path.write_text("\n".join(text))


def _places(symbols: list[list[int]]) -> str:
    return " ".join("+".join(str(symbol) for symbol in place if symbol) or "." for place in symbols)
