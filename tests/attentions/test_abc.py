"""ABC's causal form: spans and blocks, extreme weights, its memory as a state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attentions.kernels import causal_abc as kernel, chunks
from attentions.kernels.causal_abc import BLOCK, causal_abc
from tests.attentions import agreement


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


def test_gradients_of_the_memory_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "BLOCK", 3)
    monkeypatch.setattr(kernel, "SPAN", 6)
    torch.manual_seed(5)
    heads = torch.randn(3, 1, 1, 11, 2, dtype=torch.float64, requires_grad=True)
    compress = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    mass = torch.randn(2, 1, 1, 3, dtype=torch.float64, requires_grad=True)
    mean = torch.randn(2, 1, 1, 3, 2, dtype=torch.float64, requires_grad=True)

    def call(heads: Tensor, compress: Tensor, mass: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return causal_abc(*heads, compress, None, mass, mean)

    assert torch.autograd.gradcheck(call, (heads, compress, mass, mean))
