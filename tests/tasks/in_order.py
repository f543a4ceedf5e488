"""Batches as the runner gives them, without a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, Dataset


def in_order(dataset: Dataset[Any], batch_size: int) -> Iterator[Any]:
    """In order and whole."""
    yield from DataLoader(dataset, batch_size=batch_size, collate_fn=lambda batch: batch)
