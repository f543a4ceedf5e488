from __future__ import annotations

import resource

import pytest
import torch

from cab.efficiency import failures
from cab.efficiency.failures import free_bytes, status_of, within_free_memory


def test_more_than_is_free_raises_and_the_limit_goes_away() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    free = free_bytes()
    assert free is not None
    assert free > 2**20
    with within_free_memory():
        assert resource.getrlimit(resource.RLIMIT_AS) != before
        with pytest.raises(RuntimeError) as caught:
            torch.empty(2 * free, dtype=torch.uint8)
    assert status_of(caught.value) == ("oom", "")
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_without_proc_nothing_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "free_bytes", lambda: None)
    before = resource.getrlimit(resource.RLIMIT_AS)
    with within_free_memory():
        assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_other_errors_are_no_lack_of_memory() -> None:
    assert status_of(RuntimeError("expected 3 dimensions")) == ("failed", "RuntimeError: expected 3 dimensions")
    assert status_of(ZeroDivisionError()) == ("failed", "ZeroDivisionError: ")
