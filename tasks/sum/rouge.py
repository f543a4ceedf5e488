"""ROUGE-1, ROUGE-2 and summary-level ROUGE-L, computed by rouge-score."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

NAMES = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rougeLsum"}
"""Our names and rouge-score's: the published ROUGE-L is that of ROUGE-1.5.5 on texts split into sentences."""
PLAIN = tuple(f"{name}_plain" for name in NAMES)
"""Scores without stemming."""

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9–])|\n+")


def split_sentences(text: str) -> list[str]:
    """Split after . ! or ? before a capital letter, a digit or a dash, and at line breaks."""
    return [sentence.strip() for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def rouge(pairs: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Return mean F-scores in percent over (reference, summary) pairs, with and without (:data:`PLAIN`) stemming.

    Words are stemmed (Porter), as published: pyrouge always passes ``-m`` to ROUGE-1.5.5. An empty summary counts as
    the text ``<empty>``, as published.
    """
    from rouge_score.rouge_scorer import RougeScorer

    logging.getLogger("absl").setLevel(logging.WARNING)  # it logs its tokenizer at every call
    scorers = [
        (names, RougeScorer(list(NAMES.values()), use_stemmer=names != PLAIN)) for names in (tuple(NAMES), PLAIN)
    ]
    totals, count = dict.fromkeys((*NAMES, *PLAIN), 0.0), 0
    for reference, summary in pairs:
        texts = ["\n".join(split_sentences(text)) for text in (reference, summary.strip() or "<empty>")]
        for names, scorer in scorers:
            scores = scorer.score(*texts)
            for ours, theirs in zip(names, NAMES.values(), strict=True):
                totals[ours] += 100.0 * scores[theirs].fmeasure
        count += 1
    return {name: total / count for name, total in totals.items()}
