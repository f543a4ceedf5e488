"""Memory-compressed attention: groups, the tokens before the first, decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cab import UserError
from tests.attentions import agreement

OPTIONS: list[dict[str, Any]] = [{}, {"factor": 1}, {"factor": 5, "reduction": "mean"}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("pattern", ["NS", "CS", "NC", "CC"])
class TestForms:
    def test_forms_agree(self, pattern: str, options: dict[str, Any]) -> None:
        module = agreement.make("mca", pattern, **options)
        for targets, keys in ((1, 2), (2, 1), (31, 22), (12, 30)):
            agreement.assert_forms_agree(module, targets, keys if module.pattern.is_cross else targets)

    def test_padding_is_nothing(self, pattern: str, options: dict[str, Any]) -> None:
        agreement.assert_padding_is_nothing(agreement.make("mca", pattern, **options), 19, 13)

    def test_decodes(self, pattern: str, options: dict[str, Any]) -> None:
        module = agreement.make("mca", pattern, **options)
        if module.pattern.is_causal:
            for pieces in ((1,), (5, 1, 9, 2), (20, 1)):
                agreement.assert_decodes(module, 26, 13, pieces)


def test_causal() -> None:
    """A token sees the groups that have ended with it or before, the first ones the first token."""
    module = agreement.make("mca", "CS")
    x = torch.randn(1, 20, agreement.WIDTH, dtype=torch.float64, requires_grad=True)
    output = module(x)
    for i in range(20):
        (gradient,) = torch.autograd.grad(output[0, i].sum(), x, retain_graph=True)
        seen = (gradient[0].abs().amax(dim=-1) > 1e-9).nonzero().flatten().tolist()
        groups = set(range((i + 1) // 3 * 3)) or {0}
        assert set(seen) == (groups if len(groups) <= 3 else groups | {i})  # over one group the query does not count


@pytest.mark.parametrize("pattern", ["CS", "CC"])
def test_dropout_in_both_passes(pattern: str) -> None:
    agreement.assert_dropout(agreement.make("mca", pattern, dropout=0.4), 20)


def test_state() -> None:
    """A key and a value for each group that has ended, and room for an open one."""
    module = agreement.make("mca", "CS", factor=4)
    _, state = module.prefill(torch.randn(1, 23, 24, dtype=torch.float64), module.init_state(1, dtype=torch.float64))
    assert state["key"].shape[2] == 5
    assert state["open_key"].shape[2] == 3


@pytest.mark.parametrize("options", [{"factor": 0}, {"reduction": "max"}])
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="must be"):
        agreement.make("mca", "NS", **options)
