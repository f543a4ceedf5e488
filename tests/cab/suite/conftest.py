"""The cells and anchors that the bundled results in results/mini were trained for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cab.suite.anchors import read_anchors
from cab.suite.cells import suite_cells

FORMER = Path(__file__).with_name("former")


@pytest.fixture(scope="module")
def former_suite() -> Iterator[None]:
    """The suite before its core had cells of its own: all cells are of preset mini without options."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cab.suite.cells.CELLS", FORMER / "cells.csv")
        patch.setattr("cab.suite.anchors.PATH", FORMER / "anchors.csv")
        for cached in (suite_cells, read_anchors):
            cached.cache_clear()
        yield
    for cached in (suite_cells, read_anchors):
        cached.cache_clear()
