from __future__ import annotations

import pytest

from cab.efficiency import roofline


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own rates from a product and a copy that take no time."""
    monkeypatch.setitem(roofline.PRODUCT_SIZE, "cpu", 16)
    monkeypatch.setitem(roofline.COPIED_BYTES, "cpu", 2**12)
