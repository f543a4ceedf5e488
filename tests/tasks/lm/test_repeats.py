"""Tokens that end a repeated bigram: marks and losses against a loop over positions."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

from tasks.corpus.blocks import Blocks
from tasks.corpus.losses import RepeatScores, ends_repeated_bigram
from tests.tasks.in_order import in_order
from tests.tasks.lm.test_lm import Bigram
from tests.tasks.lm.test_wikitext import ready, write


def marks(block: list[int]) -> list[bool]:
    bigrams = list(itertools.pairwise(block))
    return [bigram in bigrams[:place] for place, bigram in enumerate(bigrams)]


def test_marks_equal_a_loop_and_rows_are_independent() -> None:
    blocks = torch.randint(0, 5, (7, 30), generator=torch.Generator().manual_seed(1))
    assert ends_repeated_bigram(blocks).tolist() == [marks(block) for block in blocks.tolist()]


def test_perplexities_of_a_text(tmp_path: Path) -> None:
    task = ready(write(tmp_path), block_len=40)
    backbone = Bigram(task.corpus.size)
    scores = task.evaluate(backbone, in_order)
    losses: dict[bool, list[float]] = {True: [], False: []}
    blocks = Blocks(task.corpus, "test", 40, whole=False)
    for block in (blocks[index] for index in range(len(blocks))):
        own = task.token_losses(backbone, block[None])[0].tolist()
        for mark, loss in zip(marks(block.tolist()), own, strict=True):
            losses[mark].append(loss)
    for name, group in zip(RepeatScores.names, (losses[True], losses[False]), strict=True):
        assert scores[name] == pytest.approx(math.exp(sum(group) / len(group)), rel=1e-4)
        assert name in {metric.name for metric in task.metrics}


def test_a_group_without_tokens_has_no_perplexity() -> None:
    scores = RepeatScores()
    scores.add(torch.tensor([[4, 5, 6]]), torch.ones(1, 2))
    assert math.isnan(scores.perplexities()["ppl_repeated"])
