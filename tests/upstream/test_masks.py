"""Which tokens MLM hides against fairseq's ``MaskTokensDataset`` on 400 pages of 101 tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tasks.corpus.tokens import NUM_SPECIAL
from tests.cab.test_paper_presets import composed
from tests.tasks.lm.test_lm import write_books
from tests.tasks.mlm.test_mlm import ready

FEWEST, MOST, MEAN = 15, 16, 15.135
MASKED, REPLACED, KEPT = 0.8046, 0.0935, 0.1019
"""Hidden tokens of a page, and what is seen in their place; mask_prob 0.15, random_token_prob and leave_unmasked_prob
0.1, seed 1, tokens drawn evenly."""


def test_as_many_tokens_are_hidden_in_the_same_ways(tmp_path: Path) -> None:
    task = ready(write_books(tmp_path), mask_share=composed("mlm", "pg19", "roberta", "paper")["task"]["mask_share"])
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(NUM_SPECIAL, len(task.corpus.counts), (400, 101), generator=generator)
    seen, places = task.hide(tokens, generator)
    chosen = torch.zeros(tokens.numel(), dtype=torch.bool).index_fill(0, places, True).view_as(tokens)
    counts = chosen.sum(dim=1)
    assert (counts.min(), counts.max()) == (FEWEST, MOST)
    assert counts.float().mean().item() == pytest.approx(MEAN, abs=0.06)
    masked, kept = seen[chosen] == task.mask, seen[chosen] == tokens[chosen]
    shares = [share.float().mean().item() for share in (masked, ~masked & ~kept, kept)]
    assert shares == pytest.approx([MASKED, REPLACED, KEPT], abs=0.02)
