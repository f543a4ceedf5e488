"""LM and its corpus: tokens, blocks, dictionary, perplexity against direct log-likelihood, bad books, memory."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cab import Backbone, UserError, build_backbone
from tasks.corpus.blocks import Blocks, PackedLines
from tasks.corpus.books import folder_books
from tasks.corpus.facts import THINGS, Facts
from tasks.corpus.tokens import END, NUM_SPECIAL, PAD, UNKNOWN, Corpus, read_corpus
from tasks.lm.task import LM
from tests.helpers.in_order import in_order
from tests.helpers.tasks.layouts import TEXT, write_books
from tests.helpers.tasks.records import ready


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return read_corpus(folder_books(write_books(tmp_path)), tokenizer=None, vocab_size=300)


def test_tokens_are_lines_with_their_ends_book_after_book(corpus: Corpus) -> None:
    entries = corpus.read("train", 0, len(corpus.files["train"])).tolist()
    assert entries.count(END) == len((TEXT * 8).splitlines()) + 6
    assert corpus.text(entries) == TEXT * 8 + "Another book, of ten words or more, so it stays.\n" * 6
    assert corpus.words["test"] == len((TEXT * 3).split()) + 5


def test_the_dictionary_has_what_occurs_in_training(corpus: Corpus) -> None:
    train = corpus.read("train", 0, len(corpus.files["train"]))
    assert set(train.tolist()) == {END, *range(NUM_SPECIAL, len(corpus.counts))}
    assert np.array_equal(np.bincount(train, minlength=len(corpus.counts)), corpus.counts)
    assert corpus.size % 8 == 0
    test = corpus.read("test", 0, len(corpus.files["test"]))
    assert (test == UNKNOWN).sum() == corpus.unknown["test"] > 0


@pytest.mark.parametrize("length", [7, 64])
def test_blocks_cover_every_token_once(corpus: Corpus, length: int) -> None:
    blocks = Blocks(corpus, "test", length, whole=False)
    items = [blocks[i] for i in range(len(blocks))]
    stream = corpus.read("test", 0, len(corpus.files["test"])).tolist()
    assert [t for item in items for t in item[1:].tolist()] == stream
    assert [item[0].item() for item in items] == [END, *stream[length - 1 :: length]][: len(items)]
    whole = Blocks(corpus, "test", length, whole=True)
    assert {len(whole[i]) for i in range(len(whole))} == {length + 1}


def test_a_part_shorter_than_a_block_is_refused(corpus: Corpus) -> None:
    with pytest.raises(UserError, match="block_len 100000"):
        Blocks(corpus, "test", 100_000, whole=True)


@pytest.mark.parametrize("length", [5, 30, 100])
def test_packed_lines_are_whole_where_they_fit(corpus: Corpus, length: int) -> None:
    pages = PackedLines(corpus, "train", length)
    rows = [pages.__getitems__([i])[0].tolist() for i in range(len(pages))]
    stream = corpus.read("train", 0, len(corpus.files["train"])).tolist()
    assert [t for row in rows for t in row] == stream
    assert max(map(len, rows)) <= length
    lines: list[list[int]] = [[]]
    for token in stream:
        lines[-1].append(token)
        lines += [[]] if token == END else []
    if max(map(len, lines)) <= length:
        packed: list[list[int]] = [[]]
        for line in lines:
            packed += [] if len(packed[-1]) + len(line) <= length else [[]]
            packed[-1] += line
        assert rows == packed
    batch = pages.__getitems__([0, 1, len(pages) - 1])
    assert (batch == PAD).sum() == batch.numel() - sum(len(rows[i]) for i in (0, 1, len(pages) - 1))


class Bigram(Backbone):
    """Logits that depend on the last token alone: their likelihood can be added up by hand."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(size, size))

    def forward(self, tokens: Tensor, *, selected: Tensor | None = None) -> Tensor:
        return self.table[tokens if selected is None else tokens.flatten()[selected]]


@pytest.mark.parametrize("batch_size", [1, 5])
def test_perplexity_is_the_likelihood_of_every_token(batch_size: int, tmp_path: Path) -> None:
    task = ready("lm", write_books(tmp_path), evaluation_batch_size=batch_size)
    backbone = Bigram(task.corpus.size).eval()
    stream = task.corpus.read("test", 0, len(task.corpus.files["test"]))
    log_probabilities = backbone.table.double().log_softmax(dim=-1).detach().numpy()
    nats = -log_probabilities[np.concatenate([[END], stream[:-1]]), stream].sum()
    with torch.no_grad():
        scores = task.evaluate(backbone, in_order)
    assert scores["ppl"] == pytest.approx(math.exp(nats / len(stream)), rel=1e-4)
    assert scores["word_ppl"] == pytest.approx(math.exp(nats / task.corpus.words["test"]), rel=1e-4)
    assert scores["ppl_8"] == pytest.approx(scores["ppl"], rel=1e-4)  # a bigram needs no context


def test_the_baseline_is_the_share_in_training(tmp_path: Path) -> None:
    task = ready("lm", write_books(tmp_path))
    counts = task.corpus.counts + 1.0
    stream = task.corpus.read("test", 0, len(task.corpus.files["test"]))
    expected = math.exp(-np.log(counts / counts.sum())[stream].mean())
    assert task.baselines()["unigram"]["ppl"] == pytest.approx(expected, rel=1e-9)


def test_a_context_past_the_positions_is_not_possible(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = ready("lm", write_books(tmp_path))
    options = {"embed_dim": 8, "num_heads": 2, "ffn_dim": 8, "num_layers": 1, "vocab_size": task.corpus.size}
    backbone = build_backbone("gpt2", attention="vanilla", pattern="CS", positions="learned", max_length=16, **options)
    with torch.no_grad():
        scores = task.evaluate(backbone.eval(), in_order)
    assert math.isfinite(scores["ppl"])
    assert math.isnan(scores["ppl_32"])
    assert "context length 32 failed" in caplog.text
    task.save_plots(backbone, in_order, tmp_path)  # prompt and sample text fit the positions
    assert (tmp_path / "samples.txt").stat().st_size > 0


def test_a_book_of_one_word_is_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    corpus = read_corpus(folder_books(write_books(tmp_path, book5="Word\n")), tokenizer=None, vocab_size=300)
    assert "left out 1 book of test with fewer than 10 words" in caplog.text
    assert corpus.words["test"] == len((TEXT * 2).split()) + 5


@pytest.fixture(scope="module")
def generated() -> LM:
    return ready("lm", None, dataset="synthetic", vocab_size=800, block_len=128, loss_on="answers")


def test_a_block_is_a_chapter_and_its_answers_count(generated: LM) -> None:
    block = generated.splits["train"][7]
    words = generated.corpus.text(block[1:].tolist()).split()
    assert words[0] == "Kept"
    assert len(words) == 126  # and two ends of lines
    is_answer = generated.token_losses(Bigram(generated.corpus.size), block[None])[0].isfinite()
    assert is_answer.all()
    counted = [
        generated.corpus.text([t]).strip() for t in block[1:].tolist() if Facts.of(generated.corpus).is_answer[t]
    ]
    assert counted == [word for word in words if word in THINGS]


def test_the_loss_is_that_of_the_answers(generated: LM) -> None:
    table = torch.zeros(generated.corpus.size, generated.corpus.size)
    table[:, Facts.of(generated.corpus).is_answer] = 20.0  # every thing as likely as any other, nothing else
    backbone = Bigram(generated.corpus.size)
    backbone.table.data = table
    batch = torch.stack([generated.splits["train"][i] for i in range(3)])
    assert generated.loss(backbone, batch).item() == pytest.approx(math.log(16), abs=1e-4)
    with torch.no_grad():
        scores = generated.evaluate(backbone, in_order)
    assert scores["ppl"] == pytest.approx(16.0, abs=1e-2)
    assert scores["ppl_near"] == pytest.approx(16.0, abs=1e-2)
    assert "word_ppl" not in scores


def test_a_chapter_with_32_names_is_a_block_of_144_tokens() -> None:
    task = ready("lm", None, dataset="synthetic", vocab_size=1000, names=32, block_len=144, loss_on="answers")
    blocks = task.splits["train"].__getitems__([0, 7, 511])
    assert all(task.corpus.text(block[1:].tolist()).startswith("Kept") for block in blocks)
    assert (task.is_scored(blocks[:, 1:]).sum(dim=1) == 48).all()
    backbone = Bigram(task.corpus.size)
    whole = task.token_losses(backbone, blocks)[task.is_scored(blocks[:, 1:])]
    assert torch.allclose(task.scored_losses(backbone, blocks), whole, atol=1e-6)
    assert task.config_variant == "names 32"
    assert task.baselines()["look_up_144"]["ppl"] == pytest.approx(1.0)


def test_a_window_knows_what_was_told_within_it(generated: LM) -> None:
    baselines = generated.baselines()
    assert baselines["look_up_0"]["ppl"] == pytest.approx(16.0)
    assert baselines["look_up_128"]["ppl"] == pytest.approx(1.0)
    assert 6.0 < baselines["look_up_4"]["ppl"] < 9.0
    assert baselines["look_up_4"]["ppl_near"] == pytest.approx(1.0)
    assert baselines["look_up_16"]["ppl_far"] == pytest.approx(16.0)


def test_distances_are_to_the_fact_or_to_the_same_answer(generated: LM) -> None:
    text = " annalamp borisring anna lamp boris ring anna lamp borisring boris ring clara coin"
    ids = generated.corpus.tokenizer.encode(text).ids
    found = list(Facts.of(generated.corpus).distances(generated.corpus.dictionary[ids].tolist()))
    assert [place for place, _ in found] == [3, 5, 7, 10, 12]
    assert [distance for _, distance in found[:-1]] == [3, 4, 4, 2]
    assert found[-1][1] > 128


def test_answers_alone_are_of_generated_books_with_their_words(tmp_path: Path) -> None:
    books = ready("lm", write_books(tmp_path), loss_on="answers")
    assert "word_ppl" in {metric.name for metric in books.metrics}
    assert "unigram" in books.baselines()
    with pytest.raises(UserError, match="vocab_size to 800"):
        ready("lm", None, dataset="synthetic", vocab_size=300, loss_on="answers")
