"""A cache of its own for the tests of tasks."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
