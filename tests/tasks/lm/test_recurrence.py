"""LM with recurrence: streams of whole books, memories that books do not share, scores of any batch."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backbones.gpt2 import GPT2
from cab import UserError, build_backbone
from cab.runner.batches import Shares, StepBatches
from tasks.corpus import books
from tasks.corpus.facts import Facts
from tasks.corpus.tokens import END, PAD
from tasks.lm.recurrence import BatchedBooks, BookChunks
from tasks.lm.recurrent import RecurrentLMTask
from tests.helpers.in_order import in_order
from tests.helpers.tasks.layouts import TEXT, write_books
from tests.helpers.tasks.records import ready

LENGTH, REMEMBERED = 16, 24


@pytest.fixture
def task(tmp_path: Path) -> RecurrentLMTask:
    folder = write_books(tmp_path)
    (folder / "test" / "6.txt").write_text(TEXT * 3 + "It ends within a block.\n")
    return ready("lm_recurrent", folder)


def network(task: RecurrentLMTask, **options: Any) -> GPT2:
    sizes = {"embed_dim": 16, "num_heads": 2, "ffn_dim": 16, "num_layers": 2, "vocab_size": task.corpus.size}
    torch.manual_seed(1)
    backbone = build_backbone("gpt2", attention="vanilla", pattern="CS", positions="none", **{**sizes, **options})
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.normal_(std=0.5)
    return backbone.double().eval()  # type: ignore[return-value]


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
    split = BookChunks(task.corpus, "test", LENGTH, limit=70)
    read = split.__getitems__(list(range(len(split)))).tokens[:, 1:]
    assert read[read != PAD].tolist() == stream[:70].tolist()


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_a_row_of_a_batch_goes_on_where_it_ended_and_nothing_is_read_twice(micro_batch_size: int | None) -> None:
    shares = Shares.cut(num_items=23, batch_size=4, micro_batch_size=micro_batch_size)
    order = StepBatches(num_items=23, shares=shares, num_steps=10, seed=3, in_rows=True)
    drawn = [item for draw in order for item in draw.indices]
    steps = np.array(drawn).reshape(10, 4)
    assert sorted(steps[:5].flatten()) == list(range(20))
    assert (np.diff(steps[:5], axis=0) == 1).all()
    assert (steps[5:] == steps[:5]).all()
    order.start = 7
    assert [item for draw in order for item in draw.indices] == drawn[28:]


@pytest.mark.parametrize("rows", [1, 2])
def test_books_at_once_are_each_book_from_its_beginning(task: RecurrentLMTask, rows: int) -> None:
    at_once = BatchedBooks(BookChunks(task.corpus, "test", LENGTH), rows)
    read: list[list[Tensor]] = []
    for i in range(len(at_once)):
        segments = at_once.__getitems__([i])
        assert len(segments[0].begins) <= rows
        assert [bool(segment.begins.any()) for segment in segments] == [True, *[False] * (len(segments) - 1)]
        assert segments[0].begins.all()
        group: list[list[Tensor]] = [[] for _ in segments[0].begins]
        for segment in segments:
            for book, row in zip(group, segment.tokens[:, 1:], strict=False):
                book.append(row[row != PAD])
        read += group
    ends = [0, *task.corpus.ends["test"].tolist()]
    expected = [task.corpus.read("test", a, b).tolist() for a, b in itertools.pairwise(ends)]
    assert sorted(torch.cat(book).tolist() for book in read) == sorted(expected)


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
    scores = []
    for rows in (1, 2):
        task.evaluation_batch_size = rows
        scores.append(task.evaluate(backbone, in_order))
    found = scores[0]
    assert all(other == pytest.approx(found, rel=1e-6) for other in scores[1:])
    assert found["ppl"] == pytest.approx(by_hand(task, backbone, LENGTH, REMEMBERED), rel=1e-5)
    assert found["ppl_8"] == pytest.approx(by_hand(task, backbone, 8, 0), rel=1e-5)
    assert found["ppl_16"] == pytest.approx(by_hand(task, backbone, LENGTH, 0), rel=1e-5)
    assert found["ppl_56"] == pytest.approx(by_hand(task, backbone, LENGTH, 40), rel=1e-5)
    assert len({round(found[name], 6) for name in ("ppl", "ppl_8", "ppl_16", "ppl_56")}) == 4
    validation = task.validate(backbone, in_order)
    assert math.isfinite(validation)


def test_training_goes_on_from_the_block_before_and_forgets_at_a_book(task: RecurrentLMTask) -> None:
    backbone, blocks = network(task), BookChunks(task.corpus, "train", LENGTH)
    assert type(task.splits["train"]) is BookChunks
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
    assert task.loss(backbone, blocks.__getitems__([1, first])).item() == fresh.item()


def test_answers_of_generated_books_are_looked_up_in_the_block_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "COUNTS", {"train": 8, "validation": 1, "test": 2})
    options = {"vocab_size": 800, "block_len": 64, "loss_on": "answers", "evaluation_batch_size": 2}
    task = ready("lm_recurrent", None, dataset="synthetic", memory_length=64, context_tokens=512, **options)
    baselines = task.baselines()
    assert list(baselines) == [f"look_up_{window}" for window in (0, 4, 16, 64, 128)]
    assert baselines["look_up_128"]["ppl"] == pytest.approx(1.0)
    assert baselines["look_up_64"]["ppl_far"] > 2.0
    with torch.no_grad():
        scores = task.evaluate(network(task, embed_dim=4, ffn_dim=4), in_order)
    assert {"ppl", "ppl_near", "ppl_far", "ppl_56"} <= scores.keys()
    assert all(map(math.isfinite, scores.values()))
    answers = Facts.of(task.corpus).is_answer
    stretch = task.splits["train"].__getitems__([0])
    none = stretch._replace(tokens=torch.where(answers[stretch.tokens], END, stretch.tokens))  # type: ignore[union-attr]
    loss, _ = task.recurrent_loss(network(task), none, None)
    assert loss == 0.0


def test_overlap_and_recurrence_are_the_same_twice() -> None:
    with pytest.raises(UserError, match=r"set task\.overlap=0"):
        ready("lm_recurrent", None, overlap=8)
