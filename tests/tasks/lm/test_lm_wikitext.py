"""WikiText for LM and MLM: files, words, perplexity a word whatever the tokenizer, overlap, repeated bigrams."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from cab.metric import mean_over_batches
from tasks.corpus.blocks import Blocks
from tasks.corpus.books import wikitext
from tasks.corpus.losses import OTHER, REPEATED, ends_repeated_bigram, repeat_sums
from tasks.corpus.tokens import END, NUM_SPECIAL, perplexity
from tests.helpers.in_order import in_order
from tests.helpers.tasks import records
from tests.helpers.tasks.layouts import ARTICLE, write_wikitext
from tests.tasks.lm.test_lm import Bigram


def ready(folder: Path, **options: Any) -> Any:
    return records.ready(
        "lm", folder, **{"dataset": "wikitext103", "tokenizer": "words", **options, "context_lengths": ()}
    )


@pytest.mark.parametrize(
    ("ending", "name", "dataset"),
    [
        ("wiki.{}.tokens", "wikitext-103", "wikitext103"),
        ("wiki.{}.raw", "wikitext-103-raw", "wikitext103"),
        ("{}.txt", "wikitext-2", "wikitext2"),
    ],
)
def test_files_of_either_kind_are_found(tmp_path: Path, ending: str, name: str, dataset: str) -> None:
    books = wikitext(dataset, write_wikitext(tmp_path, ending, name))
    assert list(books.read("validation")) == [ARTICLE * 3]


def test_words_are_tokens_and_lines_have_ends(tmp_path: Path) -> None:
    task = ready(write_wikitext(tmp_path))
    corpus = task.corpus
    assert corpus.words == {"train": 40 * 26, "validation": 3 * 26, "test": 5 * 26 + 4}
    assert len(corpus.files["validation"]) == corpus.words["validation"]  # a token a word, and one a line
    assert corpus.text(corpus.read("validation", 0, 26).tolist()).split() == ARTICLE.split()
    assert len(corpus.counts) == NUM_SPECIAL + len(set(ARTICLE.split()))
    assert corpus.read("test", 130, 134).tolist().count(END) == 1
    unknown = corpus.dictionary[corpus.tokenizer.token_to_id("<unk>")]
    assert corpus.read("test", 130, 132).tolist() == [unknown, unknown]  # "A crab" as the text's own <unk>


@pytest.mark.slow
def test_the_published_counts(tmp_path: Path, samples: Path) -> None:
    """217,646 and 245,569, of the sample of WikiText-2, whose evaluation articles are those of WikiText-103."""
    sample = samples / "wikitext"
    for split, source in (("train", "valid"), ("valid", "valid"), ("test", "test")):
        (tmp_path / f"{split}.txt").write_bytes((sample / f"{source}.txt").read_bytes())
    task = ready(tmp_path, dataset="wikitext2")
    assert task.corpus.words["validation"] == 217_646 == len(task.corpus.files["validation"])
    assert task.corpus.words["test"] == 245_569 == len(task.corpus.files["test"])


@pytest.mark.parametrize("tokenizer", ["words", None])
def test_perplexity_is_per_word_whatever_the_tokenizer(tmp_path: Path, tokenizer: str | None) -> None:
    task = ready(write_wikitext(tmp_path), tokenizer=tokenizer, vocab_size=280, overlap=5)
    network = Bigram(task.corpus.size)
    scores = task.evaluate(network, in_order)
    assert set(scores) == {metric.name for metric in task.metrics}
    for split, name in (("test", "word_ppl"), ("validation", "word_ppl_validation"), ("test", "word_ppl_overlap")):
        stream = torch.from_numpy(task.corpus.read(split, 0, len(task.corpus.files[split])))
        before = torch.cat([torch.tensor([END]), stream[:-1]])
        nats = -network.table.log_softmax(dim=-1)[before, stream].sum().item()
        assert scores[name] == pytest.approx(math.exp(nats / task.corpus.words[split]), rel=1e-4)


@pytest.mark.parametrize("overlap", [0, 1, 11])
def test_overlapping_blocks_score_every_token_once(tmp_path: Path, overlap: int) -> None:
    corpus = ready(write_wikitext(tmp_path)).corpus
    blocks = Blocks(corpus, "test", 12, overlap=overlap)
    items = [blocks[i].tolist() for i in range(len(blocks))]
    stream = corpus.read("test", 0, len(corpus.files["test"])).tolist()
    new = [item[1:] if number == 0 else item[1 + overlap :] for number, item in enumerate(items)]
    assert [token for tokens in new for token in tokens] == stream
    assert all(new)
    assert max(map(len, items)) == 13


# --- tokens that end a repeated bigram ---


def marks(block: list[int]) -> list[bool]:
    bigrams = list(itertools.pairwise(block))
    return [bigram in bigrams[:place] for place, bigram in enumerate(bigrams)]


def test_marks_of_repeated_bigrams_equal_a_loop_and_rows_are_independent() -> None:
    blocks = torch.randint(0, 5, (7, 30), generator=torch.Generator().manual_seed(1))
    assert ends_repeated_bigram(blocks).tolist() == [marks(block) for block in blocks.tolist()]


def test_perplexities_of_repeated_bigrams(tmp_path: Path) -> None:
    task = ready(write_wikitext(tmp_path), block_len=40)
    backbone = Bigram(task.corpus.size)
    scores = task.evaluate(backbone, in_order)
    losses: dict[bool, list[float]] = {True: [], False: []}
    blocks = Blocks(task.corpus, "test", 40, whole=False)
    for block in (blocks[index] for index in range(len(blocks))):
        own = task.token_losses(backbone, block[None])[0].tolist()
        for mark, loss in zip(marks(block.tolist()), own, strict=True):
            losses[mark].append(loss)
    for name, group in zip((REPEATED, OTHER), (losses[True], losses[False]), strict=True):
        assert scores[name] == pytest.approx(math.exp(sum(group) / len(group)), rel=1e-4)
        assert name in {metric.name for metric in task.metrics}


def test_a_group_without_tokens_has_no_perplexity() -> None:
    sums = repeat_sums(torch.tensor([[4, 5, 6]]), torch.ones(1, 2))
    assert sums == {REPEATED: (0.0, 0), OTHER: (2.0, 2)}
    assert math.isnan(perplexity(mean_over_batches([sums[REPEATED]])))
