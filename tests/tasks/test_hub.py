"""Data sets on the hub: parts by split, rows through the tasks' readers, errors in one line."""

from __future__ import annotations

from typing import Any

import datasets
import pytest

from cab import UserError
from tasks.corpus.books import HubBooks
from tasks.sum.data import HubPairs


def test_books_and_pairs_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, bool]] = []

    def load(name: str, *, split: str, streaming: bool) -> Any:
        asked.append((name, split, streaming))
        rows = [{"text": f"{split} book", "document": f"{split} NEWLINE_CHAR news", "summary": f"– {split}"}]
        return datasets.Dataset.from_list(rows).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert list(HubBooks("me/books").read("validation")) == ["validation book"]
    pairs = HubPairs("me/news")
    assert list(pairs.read("val")) == [("validation \n news", "– validation")]
    assert {(split, streaming) for _, split, streaming in asked} == {(s, True) for s in ("train", "validation", "test")}
    assert pairs.key["hub"] == "me/news"


def test_what_cannot_be_read_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(UserError, match=r"cannot read data set 'me/books' from the hub: no network$"):
        HubBooks("me/books")
