"""Losses over a large vocabulary, some logits at a time: as cross-entropy of all of them, values and gradients."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from backbones.layers import token_losses as module
from backbones.layers.token_losses import token_losses

WORDS, WIDTH = 53, 8


@pytest.fixture(autouse=True)
def _few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 5 * WORDS + 7)  # five vectors


def plain(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    logits = F.linear(x, weight, bias).flatten(0, -2)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets.flatten(), reduction="none").view_as(targets)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("dtype", "around", "error"),
    [
        (torch.float64, nullcontext(), 1e-14),
        (torch.float32, nullcontext(), 1e-6),
        (torch.float32, torch.autocast("cpu", torch.bfloat16), 1e-2),
        (torch.bfloat16, nullcontext(), 1e-2),
    ],
)
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 9)])
def test_losses_are_those_of_all_logits(
    shape: tuple[int, ...], dtype: torch.dtype, around: AbstractContextManager[None], error: float, has_bias: bool
) -> None:
    x, weight = torch.randn(*shape, WIDTH, dtype=dtype), 2 * torch.randn(WORDS, WIDTH, dtype=dtype)
    leaves = [x, weight, torch.randn(WORDS, dtype=dtype)][: 3 if has_bias else 2]
    targets, each = torch.randint(WORDS, shape), torch.randn(shape)
    results = []
    for function in (token_losses, plain):
        own = [leaf.clone().requires_grad_() for leaf in leaves]
        with around:
            losses = function(*own[:2], own[2] if has_bias else None, targets)
        results.append([losses, *torch.autograd.grad((losses * each).sum(), own)])
    for got, wanted in zip(*results, strict=True):
        assert got.dtype is wanted.dtype
        assert (got - wanted).norm() <= error * wanted.norm()


def test_no_logit_overflows() -> None:
    x = torch.tensor([[200.0, -200.0]], requires_grad=True)
    weight = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], requires_grad=True)
    losses = token_losses(x, weight, None, torch.tensor([1]))
    assert losses.tolist() == [800.0]
    losses.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[2.0, -2.0]]
