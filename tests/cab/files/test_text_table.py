"""Numbers of things have one form: that of :func:`counted`."""

from __future__ import annotations

import pytest

from cab.files.text_table import counted


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 measured lengths"), (1, "1 measured length"), (1200, "1,200 measured lengths")]
)
def test_one_thing_is_singular(count: int, text: str) -> None:
    assert counted(count, "measured length") == text
