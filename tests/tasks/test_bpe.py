"""Byte-pair encoding: exact round trips, fixed ids of special tokens, the cache, errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer

from cab import UserError
from tasks.bpe import read_bpe, trained_bpe

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "naïve café — 12.5 %"] * 5


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        return trained_bpe(lambda: iter(TEXTS), vocab_size=300, special_tokens=["<pad>", "<s>"], key={"texts": 1})


@given(text=st.text(max_size=40))
@settings(max_examples=20, deadline=None)
def test_every_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_special_tokens_come_first_and_merges_shorten(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in ("<pad>", "<s>")] == [0, 1]
    assert tokenizer.get_vocab_size() <= 300
    assert len(tokenizer.encode("the cat sat on the log").ids) < 12


def test_it_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAB_CACHE", str(tmp_path))
    calls = []

    def texts() -> Iterator[str]:
        calls.append(1)
        yield from TEXTS

    options = {"vocab_size": 270, "special_tokens": ["<pad>"]}
    first = trained_bpe(texts, key={"texts": 1}, **options)  # type: ignore[arg-type]
    assert trained_bpe(texts, key={"texts": 1}, **options).to_str() == first.to_str()  # type: ignore[arg-type]
    trained_bpe(texts, key={"texts": 2}, **options)  # type: ignore[arg-type]
    assert len(calls) == 2


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(UserError, match="at least 257"):
        trained_bpe(lambda: iter(TEXTS), vocab_size=256, special_tokens=["<pad>"], key={})


def test_what_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tokenizer at"):
        read_bpe(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="not a tokenizer"):
        read_bpe(tmp_path)
