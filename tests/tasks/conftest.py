"""Few books and a cache of their own for the tests of tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.corpus import books


@pytest.fixture(autouse=True, scope="package")
def _few_books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """So that their tokenizer is trained in seconds; tests elsewhere, whose processes know nothing of it, have all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(books, "NUM_BOOKS", {"train": 16, "validation": 2, "test": 4})
        patch.setenv("CAB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "datasets")
        yield
