"""Local attention: its window, its readable form, its state, dropout."""

from __future__ import annotations

import pytest
import torch

from tests.attentions import agreement


@pytest.mark.parametrize(
    ("pattern", "options", "first", "last"),
    [
        ("NS", {"window_size": 5}, -2, 2),
        ("NS", {"window_size": 4}, -2, 1),
        ("NS", {"window_size": 3, "extent": "per_side"}, -3, 3),
        ("CS", {"window_size": 5}, -1, 0),
        ("CS", {"window_size": 1}, 0, 0),
        ("CS", {"window_size": 5, "extent": "per_side"}, -4, 0),
    ],
)
def test_window(pattern: str, options: dict[str, object], first: int, last: int) -> None:
    """By gradient: exactly the keys from ``first`` to ``last`` count, as far as there are any."""
    module = agreement.make("local", pattern, **options)
    x = torch.randn(1, 71, agreement.WIDTH, dtype=torch.float64, requires_grad=True)
    output = module(x)
    for i in (0, 1, 37, 63, 64, 69, 70):
        (gradient,) = torch.autograd.grad(output[0, i].sum(), x, retain_graph=True)
        seen = gradient[0].any(dim=-1).nonzero().flatten().tolist()
        assert seen == list(range(max(0, i + first), min(70, i + last) + 1))
