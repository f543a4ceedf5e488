"""Data sets on the hub: splits, rows through the tasks' readers, errors in one line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cab import UserError
from tasks.corpus.books import Books, find_books
from tasks.sum.data import find_pairs


def hub_books() -> Books:
    return find_books("pg19", "me/books", None, generate=str)


def test_books_and_pairs_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, bool]] = []

    def load(name: str, *, split: str, streaming: bool) -> Any:
        asked.append((name, split, streaming))
        rows = [{"text": f"{split} book", "document": f"{split} NEWLINE_CHAR news", "summary": f"– {split}"}]
        from datasets import Dataset

        return Dataset.from_list(rows).to_iterable_dataset()

    monkeypatch.setattr("datasets.load_dataset", load)
    monkeypatch.setattr("datasets.load_dataset_builder", lambda name: builder([f"hf://datasets/{name}@main/a"]))
    assert list(hub_books().read("validation")) == ["validation book"]
    pairs = find_pairs("multi_news", "me/news", None)
    assert list(pairs.read("val")) == [("validation \n news", "– validation")]
    assert {(split, streaming) for _, split, streaming in asked} == {(s, True) for s in ("train", "validation", "test")}
    assert pairs.key["hub"] == "me/news"


def builder(files: list[str]) -> Any:
    return SimpleNamespace(config=SimpleNamespace(data_files={"train": files}))


def test_the_key_contains_what_the_content_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums of local files, the commit on the Hub; without either, no two calls have the same key."""
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: [])
    file = tmp_path / "train.parquet"

    def key(*files: str) -> Any:
        monkeypatch.setattr("datasets.load_dataset_builder", lambda _: builder(list(files)))
        return hub_books().key

    file.write_text("old")
    assert key(str(file)) == (before := key(str(file)))
    file.write_text("other")
    assert key(str(file)) != before
    commits = [f"hf://datasets/me/books@{digit * 40}/train.parquet" for digit in "ab"]
    assert key(commits[0]) == key(commits[0]) != key(commits[1])
    for files in ((), ("https://host/train.parquet",), ("hf://datasets/me/books@main/train.parquet",)):
        assert key(*files) != key(*files)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"content": "a"}, r"me/books, train, row 2: column 'text' is missing \(columns: content\)"),
        ({"text": None}, "me/books, train, row 2: column 'text' is not a text"),
    ],
)
def test_a_row_without_text_is_named(row: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.load_dataset", lambda *_, **__: [{"text": "a book"}, row])
    monkeypatch.setattr("datasets.load_dataset_builder", lambda _: builder([]))
    with pytest.raises(UserError, match=message):
        list(hub_books().read("train"))


def test_what_cannot_be_read_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr("datasets.load_dataset_builder", load)
    with pytest.raises(UserError, match=r"cannot read data set 'me/books' from the hub: no network$"):
        hub_books()
