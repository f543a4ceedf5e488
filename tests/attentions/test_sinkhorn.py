"""Sorted blocks: Sinkhorn attention."""

from __future__ import annotations

from typing import Any

import pytest

from cab import UserError
from tests.attentions import agreement

CASES: list[tuple[str, dict[str, Any]]] = [
    ("NS", {"block_size": 6}),
    ("NS", {"block_size": 1, "iterations": 2}),
    ("CS", {"block_size": 5}),
    ("CS", {"block_size": 1, "temperature": 2.0}),
]


@pytest.mark.parametrize("options", [{"block_size": 0}, {"iterations": 0}, {"temperature": 0.0}])
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="must be"):
        agreement.make("sinkhorn", "NS", **options)
