"""S4 and S4D: long convolutions in pieces, dropout, weight decay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attentions import s4, s4d
from cab import build_attention
from tests.helpers.attentions import agreement
from tests.helpers.attentions.trust import slow_unless_new

pytestmark = slow_unless_new("s4", "s4d")

FORMS: list[tuple[str, str, dict[str, Any]]] = [
    *((name, pattern, {}) for name in ("s4", "s4d") for pattern in ("NS", "CS")),
    ("s4d", "NS", {"bidirectional": False}),
]


def build(name: str, pattern: str, **options: Any) -> Any:
    """In float64, every parameter moved from where it starts, all features alike no longer."""
    sizes = {"embed_dim": agreement.WIDTH, "num_heads": agreement.HEADS, "state_size": 6}
    module = build_attention(name, pattern=pattern, **sizes, **options).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


@pytest.mark.parametrize(("name", "pattern", "options"), [*FORMS, ("s4d", "CS", {"channels": 3})])
def test_output_in_many_pieces_is_the_same(
    name: str, pattern: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = build(name, pattern, **options)
    x = torch.randn(2, 113, agreement.WIDTH, dtype=torch.float64, requires_grad=True)

    def output_and_gradients() -> list[Tensor]:
        output = module(x)
        return [output, *torch.autograd.grad(output.cos().sum(), [x, *module.parameters()])]

    whole = output_and_gradients()
    monkeypatch.setattr(s4, "NUMBERS", 2**14)
    monkeypatch.setattr(s4d, "CPU_LIMIT", 2 * agreement.WIDTH * options.get("channels", 1) * s4d.MIN_BLOCK)
    for piece, one in zip(output_and_gradients(), whole, strict=True):
        torch.testing.assert_close(piece, one)


def test_dropout_in_pieces_has_the_gradient_of_what_was_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s4d, "CPU_LIMIT", 2 * agreement.WIDTH * s4d.MIN_BLOCK)
    agreement.assert_dropout(build("s4d", "CS", dropout=0.4), 100)


def test_state_spaces_of_s4_are_trained_without_weight_decay() -> None:
    rules = build("s4", "CS").param_group_overrides()
    without = {name for name, rule in rules.items() if rule.weight_decay == 0.0}
    assert without == {"log_decay", "frequency", "low_rank", "input", "log_dt"}
