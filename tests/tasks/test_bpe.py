"""Byte-pair encoding: exact round trips, fixed ids of special tokens, the cache, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from cab import UserError
from cab.registry.registries import TASKS
from tasks.bpe import find_tokenizer, read_bpe, tokenizer_path, trained_bpe, vocabulary_size
from tasks.glue.task import GLUE
from tasks.lm.task import LM
from tasks.mlm.task import MLM
from tasks.sum.data import SPECIAL
from tasks.sum.task import Sum
from tests.helpers.tasks.layouts import write_books, write_pairs, write_table

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "naïve café — 12.5 %"] * 5


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        return trained_bpe(lambda: iter(TEXTS), vocab_size=300, special_tokens=["<pad>", "<s>"], key={"texts": 1})


@given(text=st.text(max_size=40))
@settings(max_examples=20, deadline=None, derandomize=True)
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


@pytest.mark.parametrize(
    ("task", "dataset", "published"),
    [(LM, "pg19", "gpt2"), (MLM, "pg19", "gpt2"), (Sum, "multi_news", "bart")],
)
def test_published_tokenizers_are_files_below_the_data_root(
    task: Any, dataset: str, published: str, tmp_path: Path
) -> None:
    """The command that gets them is named before any text is read."""
    ready = task(dataset=dataset, tokenizer=published, **({} if task is Sum else {"block_len": 16}))
    assert ready.extra_data == (f"{published}_bpe",)
    with pytest.raises(UserError, match=f"cab data download {published}_bpe --data-root {tmp_path}; "):
        ready.setup(tmp_path)
    write_pairs(tmp_path) if task is Sum else write_books(tmp_path)
    home = tmp_path / "tokenizers" / published
    home.mkdir(parents=True)
    made = trained_bpe(lambda: iter(TEXTS), vocab_size=300, special_tokens=SPECIAL, key={"texts": 3})
    made.save(str(home / "tokenizer.json")) if task is Sum else made.model.save(str(home))
    ready.setup(tmp_path)
    used = ready.bpe if task is Sum else ready.corpus.tokenizer
    assert used.get_vocab() == made.get_vocab()
    assert tokenizer_path("words", tmp_path) == "words"
    assert task(dataset=dataset).extra_data == ()


def words(vocabulary: dict[str, int], **settings: Any) -> str:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    content = json.loads(tokenizer.to_str()) | settings
    content["model"]["vocab"] = {"<unk>": 0, **vocabulary}
    return json.dumps(content)


BPE: Any = {
    "type": "BPE",
    "dropout": 0.9,
    "unk_token": None,
    "vocab": {"a": 0, "b": 1, "ab": 2},
    "merges": [["a", "b"]],
}
CUT = {"max_length": 1, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
FILL: Any = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1}
FILL |= {"pad_type_id": 0, "pad_token": "a"}


@pytest.mark.parametrize(
    ("content", "tokens", "warning"),
    [
        (words({"a": 1, "b": 2}), [1, 2, 1], ""),
        (words({"a": 1, "b": 70_000}), [1, 70_000, 1], ""),
        (words({"a": 1, "b": 2}, truncation=CUT), [1, 2, 1], "truncation switched off"),
        (words({"a": 1, "b": 2}, padding=FILL), [1, 2, 1], "padding switched off"),
        (words({"a": 1, "b": 2}, normalizer={"type": "Lowercase"}), [1, 2, 1], ""),
        (json.dumps({**json.loads(words({})), "model": BPE}), [0, 1, 0], "dropout switched off"),
    ],
)
def test_settings_of_a_file_that_change_texts_are_named(
    content: str, tokens: list[int], warning: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "t.json").write_text(content)
    tokenizer = read_bpe(tmp_path / "t.json")
    for _ in range(20):  # dropout is random
        assert tokenizer.encode("a b a", add_special_tokens=False).ids == tokens
    assert vocabulary_size(tokenizer) > max(tokens)
    assert re.search(warning, caplog.text)
    assert bool(warning) == bool(caplog.text)


BERT: Any = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
BERT |= {"lowercase": True}
LOWER: Any = {"type": "Lowercase"}
REMOVED: Any = {"type": "Split", "pattern": {"String": "-"}, "behavior": "Removed", "invert": False}
ACCENTS: Any = {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]}
SPECIAL_WORDS = {name: number for number, name in enumerate(SPECIAL[:3], start=900)}
LETTERS = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz", start=1)} | SPECIAL_WORDS
WITHOUT_UNKNOWN = BPE | {"vocab": {word: number for word, number in LETTERS.items() if word != "z"}, "merges": []}
TOKENIZERS: dict[str, tuple[str, str]] = {  # whose words are letters, and pairs of a text and a character that it loses
    "words": (words(LETTERS), "a zz:z a α:α a 1:1 a ab:b a A:A <unk> b:"),
    "lower case": (words(LETTERS, normalizer=LOWER), "a A:A a Ä:Ä a B C:B b Z a:Z a İ:İ"),
    "accents": (words(LETTERS, normalizer=ACCENTS), "a é:é a ü b:ü a ñ:ñ a ç:ç a ž:ž"),
    "removed": (words(LETTERS, pre_tokenizer=REMOVED), "a-b:- -:- -b-:-"),
    "no unknown": (
        json.dumps({**json.loads(words({})), "model": WITHOUT_UNKNOWN | {"dropout": None}}),
        "a z:z a 中:中 a !:! a 5:5 a 😀:😀",
    ),
    "bert": (words(LETTERS, normalizer=BERT), "a B:B a é:é a \ufffd:\ufffd a Å:Å a 中:中"),
}
LOST = [
    (content, *case) for content, cases in TOKENIZERS.values() for case in re.findall(r"(\S.*?):(\S?)(?: |$)", cases)
]
SHARES = [
    (words({"b": 1}), "b zz b", r"50% .* such as z$"),
    (words({"a": 1, "b": 2}, normalizer=LOWER), "A b b a", r"25% .* such as A$"),
    (words({"e": 1, "b": 2}, normalizer=ACCENTS), "é b b b", r"25% .* such as é$"),
    (words({"b": 1}, pre_tokenizer=REMOVED), "b-b\nb", r"25% .* such as -$"),
    (json.dumps({**json.loads(words({})), "model": BPE}), "ab b c", r"25% .* such as c$"),
]


@pytest.mark.parametrize(("content", "text", "named"), [*LOST, *SHARES])
def test_lost_text_is_named_with_its_share(
    content: str, text: str, named: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unknown, normalized and left out; an unknown token of the text itself comes back."""
    (tmp_path / "t.json").write_text(content)
    find_tokenizer(str(tmp_path / "t.json"), lambda: iter([text]), vocab_size=300, key={})
    lost = [message for message in caplog.messages if "do not come back" in message]
    assert len(lost) == bool(named)
    assert re.search(named if len(named) > 1 else f"such as .*{re.escape(named)}" if named else "", "".join(lost))


@pytest.mark.parametrize("task", ["lm", "mlm", "sum", "glue"])
def test_each_task_names_what_a_tokenizer_loses(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    path, row, folder = tmp_path / "t.json", f"a zz {'c d e f g h i j ' * 2}", tmp_path / "data"
    path.write_text(words(LETTERS))
    folder.mkdir()
    if task == "glue":
        for split in ("train", "dev"):
            write_table(folder, "sst2", *[f"{row}\t{label}" for label in (0, 1)] * 2, file=split)
        monkeypatch.setattr("tasks.glue.tables.find_data", lambda *_: folder / "train.tsv")
        made: Any = GLUE(dataset="sst2", tokenizer=str(path), max_length=40)
    else:
        for split in ("train", "validation", "test"):
            (folder / f"{split}.jsonl").write_text(json.dumps({"text": f"{row} {split[0]}", "summary": "a b"}))
        options: Any = {"source_columns": ["text", "summary"]} if task == "sum" else {"block_len": 8}
        made = TASKS.get(task).build(dataset="mine", source=str(folder), tokenizer=str(path), **options)
    made.check()
    made.setup(None)
    [message] = [message for message in caplog.messages if "do not come back" in message]
    assert message.endswith("such as z")


@pytest.mark.parametrize("word", SPECIAL[:3])
def test_the_name_of_a_special_token_in_a_text_is_a_text_or_refused(word: str, tmp_path: Path) -> None:
    """A summary would end there, or the loss would not count it."""
    for side in ("src.cleaned", "tgt"):
        folder = write_pairs(tmp_path / side)
        (folder / "sum" / f"train.{side}").write_text(f"a {word} b\n" * 6)
        task = Sum(dataset="multi_news", vocab_size=300)
        task.setup(folder)
        batch: Any = task.splits["train"].__getitems__([0])
        [row] = batch["target" if side == "tgt" else "source"]
        assert word in task.bpe.decode([token for token in row.tolist() if token > 3], skip_special_tokens=False)
        (tmp_path / "t.json").write_text(words(LETTERS))
        other = Sum(dataset="multi_news", tokenizer=str(tmp_path / "t.json"))
        with pytest.raises(UserError, match=f"example 1 of train: the tokenizer reads a word as '{word}'"):
            other.setup(folder)
