from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cab.data.hosts import Host, serve


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host; a failed download is retried at once."""
    monkeypatch.setattr("cab.data.download.RETRY_DELAYS", (0.0, 0.0))
    with serve() as served:
        yield served
