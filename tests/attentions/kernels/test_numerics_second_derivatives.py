"""Hand-written gradients have no second derivative, and say so."""

from __future__ import annotations

import pytest
import torch

from cab import build_attention


@pytest.mark.parametrize(("name", "pattern"), [("abc", "CS"), ("local", "CS"), ("linear", "NS"), ("performer", "NC")])
def test_second_derivative_is_refused(name: str, pattern: str) -> None:
    """The gradient of a sum starts from constants, through which no graph leads to the inputs."""
    attention = build_attention(name, pattern=pattern, embed_dim=32, num_heads=4)
    inputs = [torch.randn(2, 17, 32, requires_grad=True) for _ in range(1 if pattern[1] == "S" else 3)]
    for loss in (attention(*inputs).sum(), attention(*inputs).square().sum()):
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad(sum(x.sum() for x in first), inputs, allow_unused=True)


def test_first_derivative_with_a_graph_is_the_same() -> None:
    attention = build_attention("abc", pattern="CS", embed_dim=32, num_heads=4)
    x = torch.randn(2, 17, 32, requires_grad=True)
    first, second = (torch.autograd.grad(attention(x).sum(), x, create_graph=graph)[0] for graph in (False, True))
    assert torch.equal(first, second.detach())
