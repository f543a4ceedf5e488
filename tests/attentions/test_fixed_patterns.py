"""Attentions in which positions alone decide which keys a token sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cab import UserError
from tests.attentions import agreement

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("logsparse", "NS", {}),
    ("logsparse", "NS", {"local": 3, "kernel_size": 2}),
    ("logsparse", "CS", {}),
    ("logsparse", "CS", {"local": 4, "restart": 9, "kernel_size": 3}),
    ("logsparse", "CS", {"restart": 1}),
]
CAUSAL = [case for case in CASES if case[1] == "CS"]


@pytest.mark.parametrize(("name", "pattern", "options"), CASES)
class TestForms:
    @pytest.mark.parametrize("length", [1, 2, 37, 75])
    def test_forms_agree(self, name: str, pattern: str, options: dict[str, Any], length: int) -> None:
        agreement.assert_forms_agree(agreement.make(name, pattern, **options), length, length)

    def test_padding_is_nothing(self, name: str, pattern: str, options: dict[str, Any]) -> None:
        agreement.assert_padding_is_nothing(agreement.make(name, pattern, **options), 29, 29)

    def test_dropout_in_both_passes(self, name: str, pattern: str, options: dict[str, Any]) -> None:
        agreement.assert_dropout(agreement.make(name, pattern, dropout=0.4, **options), 40)


@pytest.mark.parametrize(("name", "pattern", "options"), CAUSAL)
class TestCausal:
    def test_causal(self, name: str, pattern: str, options: dict[str, Any]) -> None:
        agreement.assert_causal(agreement.make(name, pattern, **options), 30)

    def test_decodes(self, name: str, pattern: str, options: dict[str, Any]) -> None:
        agreement.assert_decodes(agreement.make(name, pattern, **options), 41, 41, (5, 1, 17, 1))


def seen(module: Any, i: int, length: int) -> list[int]:
    """By gradient: the tokens on which output ``i`` depends."""
    x = torch.randn(1, length, agreement.WIDTH, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(x)[0, i].sum(), x)
    return gradient[0].any(dim=-1).nonzero().flatten().tolist()


def test_distances_of_logsparse() -> None:
    """Powers of two; counted from the first of the local tokens; anew at every restart."""
    assert seen(agreement.make("logsparse", "CS"), 40, 50) == [40 - d for d in (32, 16, 8, 4, 2, 1, 0)]
    assert seen(agreement.make("logsparse", "NS"), 5, 12) == [1, 3, 4, 5, 6, 7, 9]
    local = agreement.make("logsparse", "CS", local=3)
    assert seen(local, 40, 50) == [40 - d for d in (34, 18, 10, 6, 4, 3, 2, 1, 0)]
    again = agreement.make("logsparse", "CS", local=3, restart=8)
    assert seen(again, 20, 50) == [20 - d for d in (20, 19, 18, 17, 16, 14, 12, 11, 10, 9, 8, 6, 4, 3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("logsparse", {"local": 0}),
        ("logsparse", {"restart": 2, "local": 3}),
        ("logsparse", {"kernel_size": 0}),
    ],
)
def test_wrong_options(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="must be"):
        agreement.make(name, "CS", **options)
