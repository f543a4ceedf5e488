from __future__ import annotations

import pytest

from cab.efficiency import roof


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own rates from a product and a copy that take no time."""
    monkeypatch.setitem(roof.PRODUCT_SIZE, "cpu", 16)
    monkeypatch.setitem(roof.COPIED_BYTES, "cpu", 2**12)
