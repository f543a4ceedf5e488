from __future__ import annotations

import pytest

from cab.efficiency import machine


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates of a product and a copy that take a millisecond; a smaller product would be slower than the calls."""
    monkeypatch.setitem(machine.PRODUCT_SIZE, "cpu", 256)
    monkeypatch.setitem(machine.COPIED_BYTES, "cpu", 2**12)
