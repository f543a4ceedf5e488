"""Byte-pair encoding: exact round trips, the cache, published tokenizers, what a file of a tokenizer loses."""

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from cab import UserError
from tasks.bpe import find_tokenizer, read_bpe, trained_bpe, vocabulary_size
from tasks.sum.data import SPECIAL_TOKENS
from tests.helpers.tasks.layouts import put, words, write_books, write_pairs
from tests.helpers.tasks.records import ready

LETTERS = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz", start=1)}
TEXTS = ["the cat sat on the mat", "the dog sat on the log", "naïve café — 12.5 %"] * 5
trained = partial(trained_bpe, lambda: iter(TEXTS), vocab_size=300, special_tokens=SPECIAL_TOKENS, key={"texts": 3})


@given(text=st.text(max_size=40))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_every_text_comes_back(text):
    tokenizer = trained()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_it_is_trained_once():
    calls: list[int] = []

    def texts(number: int) -> Iterator[str]:
        calls.append(number)
        yield "some text"

    for number in (7, 7, 8):
        trained_bpe(partial(texts, number), vocab_size=270, special_tokens=["<pad>"], key={"texts": number})
    assert calls == [7, 8]


def test_published_tokenizers_are_files_below_the_data_root(tmp_path):
    (tmp_path / "tokenizers/gpt2").mkdir(parents=True)
    trained().model.save(str(tmp_path / "tokenizers/gpt2"))
    assert ready("lm", write_books(tmp_path), tokenizer="gpt2").corpus.tokenizer.get_vocab() == trained().get_vocab()


BPE = {"type": "BPE", "dropout": 0.9, "unk_token": None, "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
CUT = {"max_length": 1, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
FILL: Any = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1}
FILL |= {"pad_type_id": 0, "pad_token": "a"}


@pytest.mark.parametrize(
    ("content", "tokens", "warning"),
    [
        (words({"a": 1, "b": 70_000}), [1, 70_000, 1], ""),
        (words({"a": 1, "b": 2}, truncation=CUT, padding=FILL), [1, 2, 1], "truncation and padding switched off"),
        (json.dumps({**json.loads(words({})), "model": BPE}), [0, 1, 0], "dropout switched off"),
    ],
)
def test_settings_of_a_file_that_change_texts_are_switched_off(content, tokens, warning, tmp_path, caplog):
    tokenizer = read_bpe(put(tmp_path / "t.json", content))
    for _ in range(20):  # dropout is random
        assert tokenizer.encode("a b a", add_special_tokens=False).ids == tokens
    assert vocabulary_size(tokenizer) > max(tokens)
    assert warning in caplog.text
    assert bool(warning) == bool(caplog.text)


def test_lost_text_is_named_with_its_share(tmp_path, caplog):
    """An unknown token of the text itself comes back."""
    path = put(tmp_path / "t.json", words(LETTERS))
    find_tokenizer(str(path), lambda: iter(["b a\nzebra <unk>"]), vocab_size=300, key={})
    [message] = caplog.messages
    assert re.search("42% .* such as z e b r a$", message)


@pytest.mark.parametrize("side", ["src.cleaned", "tgt"])
def test_the_name_of_a_special_token_in_a_text_is_a_text_or_refused(side, tmp_path):
    """A summary would end there, or the loss would not count it."""
    word = SPECIAL_TOKENS[2]
    put(write_pairs(tmp_path) / f"sum/train.{side}", f"a {word} b\n" * 6)
    task = ready("sum", tmp_path)
    [row] = task.splits["train"].__getitems__([0])["target" if side == "tgt" else "source"]
    assert word in task.bpe.decode([token for token in row.tolist() if token > 3], skip_special_tokens=False)
    special = {name: number for number, name in enumerate(SPECIAL_TOKENS[:3], start=900)}
    with pytest.raises(UserError, match=f"example 1 of train: the tokenizer reads a word as '{word}'"):
        ready("sum", tmp_path, tokenizer=str(put(tmp_path / "t.json", words(LETTERS | special))))
