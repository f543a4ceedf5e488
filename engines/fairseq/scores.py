"""Scores of a checkpoint that fairseq's own programs compute on the test split."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import cast

from cab.runner.cell import Cell
from engines.fairseq import environment
from engines.fairseq.command import task_arguments
from tasks.lm.task import LM
from tasks.mlm.task import MLM
from tasks.sum.task import ROUGE, Sum, rouge

LOSS = re.compile(r'Loss \(base 2\): ([^,]+),|"test_loss": "([^"]+)"')
"""In bits, as printed by `fairseq-eval-lm` and `fairseq-validate`."""
HYPOTHESIS = re.compile(r"H-(\d+)\t[^\t]+\t(.*)")
"""Number and tokens of a text, as printed by `fairseq-generate`."""


def fairseq_scores(cell: Cell, data: Sequence[str], checkpoint: Path, log_file: Path) -> dict[str, float]:
    """Return the perplexity of all tokens (LM) or of masked ones (MLM), or ROUGE of the summaries (Sum)."""
    task = cast(LM | MLM | Sum, cell.task)
    arguments = [*data, "--path", str(checkpoint), "--batch-size", str(task.evaluation_batch_size)]
    arguments += [*task_arguments(cell), "--log-format", "json"]
    if isinstance(task, Sum):
        return _score_summaries(task, _matches("generate", [*arguments, *search_arguments(task)], HYPOTHESIS, log_file))
    program, subset = ("eval-lm", "--gen-subset") if isinstance(task, LM) else ("validate", "--valid-subset")
    *_, (in_text, in_json) = _matches(program, [*arguments, subset, "test"], LOSS, log_file)
    return {"perplexity": 2 ** float(in_text or in_json)}


def search_arguments(task: Sum) -> list[str]:
    """Return the arguments of `fairseq-generate` for the search of the task; greedy search has one beam."""
    return [
        *("--gen-subset", "test", "--beam", str(task.num_beams if task.search == "beam" else 1)),
        *("--min-len", str(task.min_length), "--max-len-b", str(task.max_length)),
        *("--lenpen", str(task.length_penalty), "--no-repeat-ngram-size", str(task.blocked_ngram or 0)),
    ]


def _score_summaries(task: Sum, hypotheses: Iterator[tuple[str, str]]) -> dict[str, float]:
    tokens = {int(number): [int(word) for word in words.split() if word.isdigit()] for number, words in hypotheses}
    references = islice(task.splits["test"].read_texts(), task.limit)
    pairs = ((reference, task.bpe.decode(tokens[row])) for row, (_, reference) in enumerate(references))
    return {name: score for name, score in rouge(pairs).items() if name in ROUGE}


def _matches(
    program: str, arguments: Sequence[str], pattern: re.Pattern[str], log_file: Path
) -> Iterator[tuple[str, str]]:
    """Yield the groups of each match in the output of a program."""
    found: list[tuple[str, str]] = []
    environment.run(
        f"fairseq-{program}", arguments, log=log_file, watch=lambda line: found.extend(pattern.findall(line))
    )
    yield from found
