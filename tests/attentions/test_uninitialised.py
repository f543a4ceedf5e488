"""Memory that a kernel asks for uncleared holds NaN here: none of it may reach an output or a gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attentions.kernels.window_attention import Window, window_attention
from cab import build_attention
from cab.registry.registries import ATTENTIONS
from tests.attentions.agreement import with_output

CASES = [(entry.name, str(pattern)) for entry in ATTENTIONS for pattern in entry.patterns if entry.name != "none"]


def gradients(output: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(output.sin().sum(), leaves, allow_unused=True)
    return [output, *(x for x in found if x is not None)]


@pytest.mark.parametrize(("name", "pattern"), CASES)
def test_nothing_uninitialized_is_read(name: str, pattern: str) -> None:
    attention = with_output(build_attention(name, pattern=pattern, embed_dim=16, num_heads=2))
    inputs = [
        torch.randn(3, length, 16, requires_grad=True)
        for length in ((150, 130, 130) if attention.pattern.is_cross else (150,))
    ]
    padded = {"query_padding_mask": padding(150), "key_padding_mask": padding(inputs[-1].shape[1])}
    for masks in ({}, padded):
        output = attention(*inputs, **masks)
        assert all(part.isfinite().all() for part in gradients(output, [*inputs, *attention.parameters()]))


def padding(length: int) -> Tensor:
    """Of three rows: none, the end, all."""
    mask = torch.zeros(3, length, dtype=torch.bool)
    mask[1, 70:], mask[2] = True, True
    return mask


@pytest.mark.parametrize("offset", [0, 40])
def test_keys_that_no_window_reaches_have_no_gradient(offset: int) -> None:
    """Before the first window, and after the last one."""
    query = torch.randn(1, 2, 100, 4, requires_grad=True)
    key, value = (torch.randn(1, 2, 100 + offset + 200, 4, requires_grad=True) for _ in range(2))
    output = window_attention(query, key, value, Window(5, 2, offset=offset))
    _, _, d_key, d_value = gradients(output, [query, key, value])
    for gradient in (d_key, d_value):
        assert not gradient[:, :, : max(offset - 5, 0)].any()
        assert not gradient[:, :, 100 + offset + 2 :].any()
        assert gradient[:, :, offset : offset + 100].ne(0).all()
