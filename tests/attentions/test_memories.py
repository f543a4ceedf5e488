"""Attentions with segments, memories and relative positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.attentions import agreement


def test_no_gradient_to_the_memory() -> None:
    """A token reads the memory, by replacement; by gradient, nothing before its segment."""
    module = agreement.make("transformer_xl", "CS", segment=5, memory=3)
    x = torch.randn(1, 14, agreement.WIDTH, dtype=torch.float64, requires_grad=True)
    output = module(x)[0, 12]
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert gradient[0].any(dim=-1).nonzero().flatten().tolist() == [10, 11, 12]
    moved = []
    for place in range(14):
        other = x.detach().clone()
        other[0, place] += 1.0
        if not torch.equal(module(other)[0, 12], output):
            moved.append(place)
    assert moved == [7, 8, 9, 10, 11, 12]


def test_a_memory_that_holds_all() -> None:
    """Without anything to compress, the compressive form is Transformer-XL."""
    options = {"segment": 6, "memory": 40}
    compressive = agreement.make("compressive", "CS", **options)
    recurrent = agreement.make("transformer_xl", "CS", **options)
    state = {name: x for name, x in compressive.state_dict().items() if not name.startswith("compress")}
    recurrent.load_state_dict(state)
    x = torch.randn(2, 31, agreement.WIDTH, dtype=torch.float64)
    torch.testing.assert_close(compressive(x), recurrent(x))


def test_compression_learns_from_its_own_loss_alone() -> None:
    """The loss reaches the convolution and nothing else, the output everything else; equal tokens lose nothing."""
    module = agreement.make("compressive", "CS", segment=6, memory=5, compressed=4, factor=3).train()
    output = module(torch.randn(2, 40, agreement.WIDTH, dtype=torch.float64))
    loss = module.auxiliary_loss()
    parameters = dict(module.named_parameters())
    own = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    others = torch.autograd.grad(output.square().sum(), list(parameters.values()), materialize_grads=True)
    for name, from_loss, from_output in zip(parameters, own, others, strict=True):
        is_compression = name.startswith("compress")
        assert bool(from_loss.any()) is is_compression, name
        assert bool(from_output.any()) is not is_compression, name
    with torch.no_grad():
        module.compress.weight.copy_(torch.eye(agreement.WIDTH)[:, :, None].expand(-1, -1, 3) / 3)
        module.compress.bias.zero_()
        module(torch.ones(1, 40, agreement.WIDTH, dtype=torch.float64))
    assert float(module.auxiliary_loss()) < 1e-12


@pytest.mark.parametrize("options", [{}, {"segment": 6, "memory": 5, "compressed": 4, "factor": 3}])
def test_compression_has_a_gradient_beyond_the_stated_length(options: dict[str, Any]) -> None:
    module = agreement.make("compressive", "CS", **options).train()
    longest = module.segment * -(-(module.memory + module.factor) // module.segment)
    module(torch.randn(1, longest, agreement.WIDTH, dtype=torch.float64))
    assert module.auxiliary_loss() is None
    module(torch.randn(1, longest + 1, agreement.WIDTH, dtype=torch.float64))
    module.auxiliary_loss().backward()
    assert module.compress.weight.grad.any()
