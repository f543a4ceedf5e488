"""Local attention: its window, its readable form, its state, dropout."""

from __future__ import annotations

import pytest
import torch

from cab import UserError
from tests.attentions import agreement

CASES = [
    ("NS", {}),
    ("NS", {"window_size": 1}),
    ("NS", {"window_size": 5}),
    ("NS", {"window_size": 40, "extent": "per_side"}),
    ("CS", {}),
    ("CS", {"window_size": 1}),
    ("CS", {"window_size": 7, "extent": "per_side"}),
    ("CS", {"window_size": 90}),
]


@pytest.mark.parametrize(("pattern", "options"), CASES)
class TestLocal:
    @pytest.mark.parametrize("length", [1, 67, 131])
    def test_forms_agree(self, pattern: str, options: dict[str, object], length: int) -> None:
        agreement.assert_forms_agree(agreement.make("local", pattern, **options), length, length)


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


def test_state_has_constant_size() -> None:
    module = agreement.make("local", "CS", window_size=6, extent="per_side")
    state = module.init_state(2, dtype=torch.float64)
    _, later = module.prefill(torch.randn(2, 99, agreement.WIDTH, dtype=torch.float64), state)
    assert {name: x.shape for name, x in state.items()} == {name: x.shape for name, x in later.items()}
    assert later["key"].shape[2] == 5


@pytest.mark.parametrize("pattern", ["NS", "CS"])
def test_dropout_in_both_passes(pattern: str) -> None:
    """The gradient is that of the very weights that the forward pass dropped; evaluation drops none."""
    module = agreement.make("local", pattern, dropout=0.4, window_size=6)
    x = torch.randn(1, 70, agreement.WIDTH, dtype=torch.float64, requires_grad=True)
    towards = torch.randn_like(x)

    def loss(at: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return module(at).sin().sum()

    (gradient,) = torch.autograd.grad(loss(x), x)
    slope = (loss(x + 1e-6 * towards) - loss(x - 1e-6 * towards)) / 2e-6
    torch.testing.assert_close((gradient * towards).sum(), slope, rtol=1e-6, atol=1e-6)
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))


def test_no_parameters_beyond_the_projections() -> None:
    assert sum(p.numel() for p in agreement.make("local", "NS").parameters()) == 4 * 24**2 + 4 * 24


@pytest.mark.parametrize("options", [{"window_size": 0}, {"extent": "both"}, {"window_size": -3, "extent": "per_side"}])
def test_wrong_options(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match="must be"):
        agreement.make("local", "NS", **options)
