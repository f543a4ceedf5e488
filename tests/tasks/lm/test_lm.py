"""LM and its corpus: tokens, blocks, dictionary, perplexity against direct log-likelihood, answers; recurrence."""

import itertools
import math

import numpy as np
import pytest
import torch

from backbones.gpt2 import GPT2
from backbones.layers import token_losses as few_logits
from cab import UserError
from cab.runner.batches import Shares, StepBatches
from tasks.corpus import losses
from tasks.corpus.blocks import Blocks, PackedLines
from tasks.corpus.books import folder_books, wikitext
from tasks.corpus.facts import Facts
from tasks.corpus.tokens import END, NUM_SPECIAL, PAD, UNKNOWN_ENTRY, Corpus, read_corpus
from tasks.lm.recurrent import BookChunks, RecurrentLMTask
from tasks.means import masked_mean
from tests.helpers.backbones.records import RECORDS, small
from tests.helpers.tasks.layouts import ARTICLE, TEXT, write_books, write_wikitext
from tests.helpers.tasks.records import Bigram, in_order, network, ready


@pytest.fixture
def corpus(tmp_path):
    return read_corpus(folder_books(write_books(tmp_path, book5="Word\n")), tokenizer=None, vocab_size=300)


def stream(corpus: Corpus, split: str) -> np.ndarray:
    return corpus.read(split, 0, len(corpus.files[split]))


def test_tokens_are_lines_with_their_ends_and_the_dictionary_has_what_occurs_in_training(corpus):
    train, test = (stream(corpus, split) for split in ("train", "test"))
    text = TEXT * 8 + "Another book, of ten words or more, so it stays.\n" * 6
    assert train.tolist().count(END) == len(text.splitlines())
    assert corpus.text(train.tolist()) == text
    assert set(train.tolist()) == {END, *range(NUM_SPECIAL, len(corpus.counts))}
    assert np.array_equal(np.bincount(train, minlength=len(corpus.counts)), corpus.counts)
    assert corpus.size % 8 == 0
    assert (test == UNKNOWN_ENTRY).sum() == corpus.unknown["test"] > 0
    assert corpus.words["test"] == len((TEXT * 2).split()) + 5  # a book of one word is left out


@pytest.mark.parametrize("overlap", [0, 1, 5])
def test_blocks_cover_every_token_once(corpus, overlap):
    blocks = Blocks(corpus, "test", 7, overlap=overlap)
    items, expected = [blocks[i].tolist() for i in range(len(blocks))], stream(corpus, "test").tolist()
    new = [item[1:] if number == 0 else item[1 + overlap :] for number, item in enumerate(items)]
    assert [token for tokens in new for token in tokens] == expected
    assert all(new)
    assert [item[0] for item in items] == [END, *expected[6 - overlap :: 7 - overlap]][: len(items)]
    whole = Blocks(corpus, "test", 7, whole=True, overlap=overlap)
    assert {len(whole[i]) for i in range(len(whole))} == {8}


@pytest.mark.parametrize("length", [5, 30])
def test_packed_lines_are_whole_where_they_fit(corpus, length):
    pages, tokens = PackedLines(corpus, "train", length), stream(corpus, "train")
    rows = [pages.__getitems__([i])[0].tolist() for i in range(len(pages))]
    assert [t for row in rows for t in row] == tokens.tolist()
    assert max(map(len, rows)) <= length
    lines = np.split(tokens, np.flatnonzero(tokens == END) + 1)
    if max(map(len, lines)) <= length:
        packed: list[list[int]] = [[]]
        for line in lines:
            packed += [] if len(packed[-1]) + len(line) <= length else [[]]
            packed[-1] += line.tolist()
        assert rows == packed
    batch = pages.__getitems__([0, 1, len(pages) - 1])
    assert (batch != PAD).sum() == sum(len(rows[i]) for i in (0, 1, len(pages) - 1))


@torch.no_grad()
@pytest.mark.parametrize("tokenizer", ["words", None])
@pytest.mark.parametrize("dataset", ["pg19", "wikitext103"])
def test_perplexities_are_likelihoods_per_token_and_per_word(dataset, tokenizer, tmp_path):
    """Whatever the tokenizer, the batch and the overlap; of all tokens, and of those that end a repeated bigram."""
    (write_books if dataset == "pg19" else write_wikitext)(tmp_path)
    task = ready("lm", tmp_path, dataset=dataset, tokenizer=tokenizer, overlap=5, evaluation_batch_size=3)
    bigram = Bigram(task.corpus.size)
    scores, nats = task.evaluate(bigram, in_order), {}
    for split in ("test", "validation"):
        tokens = torch.from_numpy(np.concatenate([[END], stream(task.corpus, split)]))
        nats[split] = -bigram.table.double().log_softmax(dim=-1)[tokens[:-1], tokens[1:]]
        if (name := {"test": "word_ppl", "validation": "word_ppl_validation"}[split]) in scores:
            assert scores[name] == pytest.approx(math.exp(nats[split].sum() / task.corpus.words[split]), rel=1e-4)
    assert ("word_ppl_validation" in scores) == (dataset == "wikitext103")
    assert scores["word_ppl_overlap"] == pytest.approx(scores["word_ppl"], rel=1e-4)
    assert scores["ppl"] == pytest.approx(nats["test"].mean().exp().item(), rel=1e-4)
    assert scores["ppl_8"] == pytest.approx(scores["ppl"], rel=1e-4)  # a bigram needs no context
    blocks, marks = Blocks(task.corpus, "test", 16), list[bool]()
    for block in (blocks[i].tolist() for i in range(len(blocks))):
        bigrams = list(itertools.pairwise(block))
        marks += [bigram in bigrams[:place] for place, bigram in enumerate(bigrams)]
    for name, chosen in (("ppl_repeated", torch.tensor(marks)), ("ppl_other", ~torch.tensor(marks))):
        assert scores[name] == pytest.approx(nats["test"][chosen].mean().exp().item(), rel=1e-4, nan_ok=True)
    shares = (task.corpus.counts + 1.0) / (task.corpus.counts + 1.0).sum()
    unigram = math.exp(-np.log(shares)[stream(task.corpus, "test")].mean())
    assert task.baselines()["unigram"]["ppl"] == pytest.approx(unigram, rel=1e-9)


def test_words_of_wikitext_are_tokens_and_lines_have_ends(tmp_path):
    corpus = ready("lm", write_wikitext(tmp_path), dataset="wikitext103").corpus
    assert corpus.words == {"train": 40 * 26, "validation": 3 * 26, "test": 5 * 26 + 4}
    assert len(corpus.files["validation"]) == corpus.words["validation"]  # one token per word, and one per line
    assert corpus.text(corpus.read("validation", 0, 26).tolist()).split() == ARTICLE.split()
    assert len(corpus.counts) == NUM_SPECIAL + len(set(ARTICLE.split()))
    unknown = corpus.dictionary[corpus.tokenizer.token_to_id("<unk>")]
    assert corpus.read("test", 130, 134).tolist()[:2] == [unknown, unknown]  # "A crab" as the text's own <unk>


@pytest.mark.parametrize(("ending", "name"), [("wiki.{}.raw", "wikitext-103-raw"), ("{}.txt", "wikitext-103")])
def test_wikitext_of_either_kind_is_found(tmp_path, ending, name):
    assert list(wikitext("wikitext103", write_wikitext(tmp_path, ending, name)).read("validation")) == [ARTICLE * 3]


@pytest.mark.slow
def test_wikitext_has_the_published_counts(tmp_path, samples):
    """217,646 and 245,569, of the sample of WikiText-2, whose evaluation articles are those of WikiText-103."""
    for split, source in (("train", "valid"), ("valid", "valid"), ("test", "test")):
        (tmp_path / f"{split}.txt").write_bytes((samples / "wikitext" / f"{source}.txt").read_bytes())
    task = ready("lm", tmp_path, dataset="wikitext2", tokenizer="words")
    assert task.corpus.words["validation"] == 217_646 == len(task.corpus.files["validation"])
    assert task.corpus.words["test"] == 245_569 == len(task.corpus.files["test"])


def test_a_context_past_the_positions_is_not_possible(tmp_path, caplog):
    task = ready("lm", write_books(tmp_path))
    backbone = RECORDS["gpt2"].build("gpt2", max_length=16, vocab_size=task.corpus.size)
    with torch.no_grad():
        scores = task.evaluate(backbone, in_order)
    assert math.isfinite(scores["ppl"])
    assert math.isnan(scores["ppl_32"])
    assert "context length 32 failed" in caplog.text
    task.save_plots(backbone, in_order, tmp_path)  # prompt and sample text fit the positions


def test_the_loss_is_that_of_the_answers():
    generated = ready("lm", None, block_len=128)
    backbone = Bigram(generated.corpus.size)
    backbone.table.data.zero_()
    backbone.table.data[:, Facts.of(generated.corpus).is_answer] = 20.0  # every thing as likely as any other
    batch = torch.stack([generated.splits["train"][i] for i in range(3)])
    assert generated.loss(backbone, batch).item() == pytest.approx(math.log(16), abs=1e-4)
    with torch.no_grad():
        scores = generated.evaluate(backbone, in_order)
    assert (scores["ppl"], scores["ppl_near"]) == (pytest.approx(16.0, abs=1e-2),) * 2


def test_a_window_knows_what_was_told_within_it():
    baselines = ready("lm", None, block_len=128).baselines()
    assert baselines["look_up_0"]["ppl"] == pytest.approx(16.0)
    assert baselines["look_up_128"]["ppl"] == pytest.approx(1.0)
    assert 6.0 < baselines["look_up_4"]["ppl"] < 9.0
    assert baselines["look_up_4"]["ppl_near"] == pytest.approx(1.0)
    assert baselines["look_up_16"]["ppl_far"] == pytest.approx(16.0)


def test_answers_need_their_words():
    with pytest.raises(UserError, match="vocab_size to 800"):
        ready("lm", None, vocab_size=300)


def test_distances_are_to_the_fact_or_to_the_same_answer():
    corpus = ready("lm", None).corpus
    text = " annalamp borisring anna lamp boris ring anna lamp borisring boris ring clara coin"
    ids = corpus.tokenizer.encode(text).ids
    *found, (place, distance) = Facts.of(corpus).distances(corpus.dictionary[ids].tolist())
    assert found == [(3, 3), (5, 4), (7, 4), (10, 2)]
    assert (place, distance > 128) == (12, True)


@pytest.mark.parametrize("name", ["lm", "mlm"])
def test_losses_and_gradients_are_those_of_all_logits(name, tmp_path, monkeypatch):
    task = ready(name, write_books(tmp_path))
    monkeypatch.setattr(few_logits, "AT_ONCE", 300)
    net, batch, results = network(name, task).eval(), task.training_set.__getitems__([0, 1]), []
    for large in (losses.LARGE, 0):
        monkeypatch.setattr(losses, "LARGE", large)
        torch.manual_seed(3)
        loss = task.loss(net, batch)
        results.append([loss, *torch.autograd.grad(loss, list(net.parameters()))])
    torch.testing.assert_close(*results)
    if name == "lm":
        assert task.loss(Bigram(task.corpus.size), batch).isfinite()  # of a network that gives logits alone


def test_a_masked_mean_is_that_of_the_selected_values_whatever_the_others():
    x = torch.randn(3, 5, 4)
    mask = torch.tensor([[True, False, True, True, False], [False] * 5, [True] * 5])
    torch.testing.assert_close(masked_mean(x.masked_fill(~mask[..., None], torch.nan), mask), x[mask].mean())
    assert masked_mean(x, torch.zeros_like(mask)) == 0.0


@pytest.fixture
def recurrent(tmp_path):
    folder = write_books(tmp_path)
    (folder / "test" / "6.txt").write_text(TEXT * 3 + "It ends within a block.\n")
    return ready("lm_recurrent", folder)


def with_large_weights(task: RecurrentLMTask) -> GPT2:
    backbone = small("gpt2", positions="none", vocab_size=task.corpus.size)
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return backbone


def test_blocks_are_the_books_and_begin_with_them(recurrent):
    blocks = BookChunks(recurrent.corpus, "test", 16)
    tokens, begins = blocks.__getitems__(list(range(len(blocks))))
    assert tokens[:, 1:][tokens[:, 1:] != PAD].tolist() == stream(recurrent.corpus, "test").tolist()
    assert begins.nonzero().flatten().tolist() == blocks.firsts.tolist() != [0]
    assert (tokens[~begins.roll(-1)] != PAD).all()
    assert (tokens[begins, 0] == END).all()
    follows = (~begins).nonzero().flatten()
    assert torch.equal(tokens[follows, 0], tokens[follows - 1, -1])


def test_a_row_of_a_batch_goes_on_where_it_ended_and_nothing_is_read_twice():
    shares = Shares.cut(num_items=23, batch_size=4, micro_batch_size=2)
    order = StepBatches(num_items=23, shares=shares, num_steps=10, seed=3, in_rows=True)
    steps = np.array([draw.indices for draw in order]).reshape(10, 4)
    assert sorted(steps[:5].flatten()) == list(range(20))
    assert (np.diff(steps[:5], axis=0) == 1).all()
    assert (steps[5:] == steps[:5]).all()
    order.start = 7
    assert np.array_equal(np.array([draw.indices for draw in order]).reshape(3, 4), steps[7:])


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
def test_perplexity_is_that_of_each_book_alone_whatever_the_batch(recurrent):
    backbone = with_large_weights(recurrent)
    recurrent.evaluation_batch_size = 2
    found = recurrent.evaluate(backbone, in_order)
    for name, length, remembered in (("ppl", 16, 24), ("ppl_8", 8, 0), ("ppl_16", 16, 0), ("ppl_56", 16, 40)):
        assert found[name] == pytest.approx(by_hand(recurrent, backbone, length, remembered), rel=1e-5), name
    assert len({*found.values()}) == len(found)


def test_training_goes_on_from_the_block_before_and_forgets_at_a_book(recurrent):
    backbone, blocks = with_large_weights(recurrent), BookChunks(recurrent.corpus, "train", 16)
    first = int(blocks.firsts[1])
    _, mems = recurrent.recurrent_loss(backbone, blocks.__getitems__([0, first - 1]), None)
    batch = blocks.__getitems__([1, first])  # the second row begins a book
    loss, _ = recurrent.recurrent_loss(backbone, batch, mems)
    rows = (1, {name: x[:1] for name, x in mems.items()}), (first, None)
    alone = [recurrent.recurrent_loss(backbone, blocks.__getitems__([i]), before)[0] for i, before in rows]
    assert loss.item() == pytest.approx(sum(alone).item() / 2)
    assert recurrent.loss(backbone, batch).item() != pytest.approx(loss.item())


def test_answers_of_generated_books_are_looked_up_in_the_block_before():
    baselines = ready("lm_recurrent", None, block_len=64, memory_length=64).baselines()
    assert baselines["look_up_128"]["ppl"] == pytest.approx(1.0)
    assert baselines["look_up_64"]["ppl_far"] > 2.0
