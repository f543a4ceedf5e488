"""ABC's causal form: spans and blocks, extreme weights, its memory as a state."""

from __future__ import annotations

import pytest
import torch

from attentions.kernels import causal_abc as kernel, chunks
from attentions.kernels.causal_abc import BLOCK
from tests.helpers.attentions import agreement
from tests.helpers.attentions.trust import slow_unless_new

pytestmark = slow_unless_new("abc")


@pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 149])
@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_spans_equal_the_readable_form(length: int, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "SPAN", 2 * BLOCK)
    monkeypatch.setattr(chunks, "CPU_TOKENS", 8 * BLOCK)  # two of five rows at once
    module = agreement.make("abc", "CS", num_landmarks=5)
    with torch.no_grad():
        module.compress_k.mul_(scale)
        module.compress_v.mul_(scale)
    for masked in (False, True):
        agreement.assert_forms_agree(module, length, length, masked)
