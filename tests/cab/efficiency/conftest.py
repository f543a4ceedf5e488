from __future__ import annotations

import pytest

from cab.efficiency import machine


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own rates from a product and a copy that take no time."""
    monkeypatch.setitem(machine.PRODUCT_SIZE, "cpu", 16)
    monkeypatch.setitem(machine.COPIED_BYTES, "cpu", 2**12)
