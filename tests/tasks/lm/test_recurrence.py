"""LM with recurrence: streams of whole books, memories that books do not share, scores of any batch."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from backbones.gpt2 import GPT2
from cab.runner.batches import Shares, StepBatches
from tasks.corpus.tokens import END, PAD
from tasks.lm.recurrent import BookChunks, RecurrentLMTask
from tests.helpers.backbones.records import small
from tests.helpers.tasks.layouts import TEXT, write_books
from tests.helpers.tasks.records import in_order, ready

LENGTH = 16


@pytest.fixture
def task(tmp_path: Path) -> RecurrentLMTask:
    folder = write_books(tmp_path)
    (folder / "test" / "6.txt").write_text(TEXT * 3 + "It ends within a block.\n")
    return ready("lm_recurrent", folder)


def network(task: RecurrentLMTask) -> GPT2:
    torch.manual_seed(1)
    backbone = small("gpt2", positions="none", vocab_size=task.corpus.size)
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return backbone


def test_blocks_are_the_books_and_begin_with_them(task: RecurrentLMTask) -> None:
    blocks = BookChunks(task.corpus, "test", LENGTH)
    tokens, begins = blocks.__getitems__(list(range(len(blocks))))
    stream = task.corpus.read("test", 0, len(task.corpus.files["test"]))
    assert tokens[:, 1:][tokens[:, 1:] != PAD].tolist() == stream.tolist()
    assert begins.nonzero().flatten().tolist() == blocks.firsts.tolist() != [0]
    ends = begins.roll(-1)
    assert (tokens[~ends] != PAD).all()
    assert (tokens[begins, 0] == END).all()
    follows = (~begins).nonzero().flatten()
    assert torch.equal(tokens[follows, 0], tokens[follows - 1, -1])


def test_a_row_of_a_batch_goes_on_where_it_ended_and_nothing_is_read_twice() -> None:
    shares = Shares.cut(num_items=23, batch_size=4, micro_batch_size=2)
    order = StepBatches(num_items=23, shares=shares, num_steps=10, seed=3, in_rows=True)
    drawn = [item for draw in order for item in draw.indices]
    steps = np.array(drawn).reshape(10, 4)
    assert sorted(steps[:5].flatten()) == list(range(20))
    assert (np.diff(steps[:5], axis=0) == 1).all()
    assert (steps[5:] == steps[:5]).all()
    order.start = 7
    assert [item for draw in order for item in draw.indices] == drawn[28:]


def by_hand(task: RecurrentLMTask, backbone: GPT2, length: int, remembered: int) -> float:
    """Perplexity of the test split, each book alone."""
    total, count, begin = 0.0, 0, 0
    for end in task.corpus.ends["test"].tolist():
        ids = torch.from_numpy(np.concatenate([[END], task.corpus.read("test", begin, end)]))
        mems = backbone.init_mems(1, remembered)
        for block in range(0, len(ids) - 1, length):
            targets = ids[block + 1 : block + length + 1]
            logits, mems = backbone(ids[None, block : block + len(targets)], mems=mems)
            total -= logits[0].log_softmax(dim=-1)[torch.arange(len(targets)), targets].sum().item()
        count, begin = count + end - begin, end
    return math.exp(total / count)


@torch.no_grad()
def test_perplexity_is_that_of_each_book_alone_whatever_the_batch(task: RecurrentLMTask) -> None:
    backbone = network(task)
    task.evaluation_batch_size = 2
    found = task.evaluate(backbone, in_order)
    for name, length, remembered in (("ppl", 16, 24), ("ppl_8", 8, 0), ("ppl_16", 16, 0), ("ppl_56", 16, 40)):
        assert found[name] == pytest.approx(by_hand(task, backbone, length, remembered), rel=1e-5), name
    assert len({*found.values()}) == len(found)


def test_training_goes_on_from_the_block_before_and_forgets_at_a_book(task: RecurrentLMTask) -> None:
    backbone, blocks = network(task), BookChunks(task.corpus, "train", LENGTH)
    first = int(blocks.firsts[1])
    _, mems = task.recurrent_loss(backbone, blocks.__getitems__([0, first - 1]), None)
    batch = blocks.__getitems__([1, first])  # the second row begins a book
    loss, _ = task.recurrent_loss(backbone, batch, mems)
    alone = [
        task.recurrent_loss(backbone, blocks.__getitems__([1]), {name: x[:1] for name, x in mems.items()})[0],
        task.recurrent_loss(backbone, blocks.__getitems__([first]), None)[0],
    ]
    assert loss.item() == pytest.approx(sum(alone).item() / 2)
    fresh = task.loss(backbone, batch)
    assert fresh.item() != pytest.approx(loss.item())


def test_answers_of_generated_books_are_looked_up_in_the_block_before() -> None:
    task = ready("lm_recurrent", None, block_len=64, memory_length=64)
    baselines = task.baselines()
    assert baselines["look_up_128"]["ppl"] == pytest.approx(1.0)
    assert baselines["look_up_64"]["ppl_far"] > 2.0
