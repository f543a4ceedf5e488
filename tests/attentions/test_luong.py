"""The score functions of Luong et al."""

from __future__ import annotations

from typing import Any

import pytest

from attentions.kernels.common import chunked_heads
from cab import UserError
from tests.attentions import agreement

SCORES: list[dict[str, Any]] = [{"score": "dot"}, {}, {"score": "concat"}, {"score": "concat", "scaled": True}]


@pytest.mark.parametrize("options", SCORES)
@pytest.mark.parametrize("pattern", ["NS", "CS", "NC", "CC"])
class TestScores:
    def test_forms_agree(self, pattern: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chunked_heads, "CPU_LIMIT", 2**13)  # a few queries at a time
        module = agreement.make("luong", pattern, **options)
        for targets, keys in ((1, 1), (37, 23)):
            agreement.assert_forms_agree(module, targets, keys if module.pattern.is_cross else targets)

    def test_padding_is_nothing(self, pattern: str, options: dict[str, Any]) -> None:
        agreement.assert_padding_is_nothing(agreement.make("luong", pattern, **options), 17, 13)

    def test_decodes(self, pattern: str, options: dict[str, Any]) -> None:
        module = agreement.make("luong", pattern, **options)
        if module.pattern.is_causal:
            agreement.assert_decodes(module, 81, 13, (5, 60, 1, 4, 1))


def test_dropout_in_both_passes() -> None:
    agreement.assert_dropout(agreement.make("luong", "CS", dropout=0.4, score="concat"), 30)


def test_unknown_score() -> None:
    with pytest.raises(UserError, match="'dot', 'general' or 'concat', got 'mlp'"):
        agreement.make("luong", "NS", score="mlp")
