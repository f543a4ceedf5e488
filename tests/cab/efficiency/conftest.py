from __future__ import annotations

import pytest

from cab.efficiency import machine, protocols


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call per round, and the machine's own rates from a product and a copy that take no time."""
    monkeypatch.setattr(protocols, "MAX_CALLS", 1)
    monkeypatch.setitem(machine.PRODUCT_SIZE, "cpu", 16)
    monkeypatch.setitem(machine.COPIED_BYTES, "cpu", 2**12)
