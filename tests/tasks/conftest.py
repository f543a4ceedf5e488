"""A cache of its own for the tests of tasks, and where the real samples are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA = Path(os.environ.get("CAB_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAB_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of the real samples."""
    if not (DATA / "lm").is_dir():
        pytest.fail(f"no samples in {DATA}: point CAB_DATA at a folder with lm, sum, tts, pcc, sr and lstf")
    return DATA
