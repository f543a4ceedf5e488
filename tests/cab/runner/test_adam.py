"""Our Adam is torch's to the bit, and so are its state and its decay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from engines.torch import adam
from engines.torch.adam import Adam, make_optimizer
from tests.cab.runner.test_trainer_config import config


def trained(network: nn.Module, optimizer: Any, steps: range) -> list[torch.Tensor]:
    """The weights after steps that leave one parameter without a gradient."""
    for step in steps:
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        network[0](x).square().mean().backward()  # type: ignore[operator, index]
        optimizer.step()
    return [parameter.detach().clone() for parameter in network.parameters()]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))


@pytest.mark.parametrize(("name", "theirs"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_steps_as_torch_does(name: str, theirs: Any, weight_decay: float) -> None:
    ours_network, theirs_network = network(), network()
    ours = make_optimizer(ours_network, config(optimizer=name, weight_decay=weight_decay, betas=[0.8, 0.9], eps=1e-6))
    other = theirs(theirs_network.parameters(), lr=1e-3, betas=(0.8, 0.9), eps=1e-6, weight_decay=weight_decay)
    before = [parameter.detach().clone() for parameter in ours_network.parameters()]
    after = trained(ours_network, ours, range(5))
    for one, two in zip(after, trained(theirs_network, other, range(5)), strict=True):
        assert torch.equal(one, two)
    assert [torch.equal(one, two) for one, two in zip(before, after, strict=True)] == [False, False, True, True]


def test_a_state_that_was_saved_goes_on_to_the_bit() -> None:
    uncut, cut = network(), network()
    expected = trained(uncut, make_optimizer(uncut, config()), range(6))
    first = make_optimizer(cut, config())
    trained(cut, first, range(3))
    second = make_optimizer(cut, config())
    second.load_state_dict(first.state_dict())
    for one, two in zip(expected, trained(cut, second, range(3, 6)), strict=True):
        assert torch.equal(one, two)


def test_the_rate_is_a_factor_of_every_groups_own() -> None:
    weights = [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))]
    groups = [{"params": [w], "lr": lr, "weight_decay": 0.0} for w, lr in zip(weights, (0.1, 0.2), strict=True)]
    optimizer = Adam(groups, betas=(0.9, 0.999), eps=0.0, decoupled=False)
    optimizer.rate = 0.5
    sum(weights).backward()  # type: ignore[union-attr]
    optimizer.step()
    assert [w.item() for w in weights] == pytest.approx([0.95, 0.9])


def test_vectors_can_be_left_out_of_weight_decay() -> None:
    layer = nn.Linear(3, 2)
    groups = make_optimizer(layer, config(weight_decay=0.1, decay_vectors=False)).param_groups
    assert [(group["weight_decay"], [p.ndim for p in group["params"]]) for group in groups] == [(0.1, [2]), (0.0, [1])]
    [group] = make_optimizer(layer, config(weight_decay=0.1)).param_groups
    assert group["weight_decay"] == 0.1
    assert len(group["params"]) == 2


def test_the_fused_kernel_does_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken on a GPU; a CPU has one too. A run that was saved without it goes on with it."""
    expected, fused, resumed = network(), network(), network()
    options = config(optimizer="adamw", weight_decay=0.1)
    plain = make_optimizer(expected, options)
    weights = trained(expected, plain, range(3))
    trained(resumed, first := make_optimizer(resumed, options), range(1))
    saved = first.state_dict()
    calls = []
    monkeypatch.setattr(torch, "_fused_adamw_", noted(torch._fused_adamw_, calls))
    monkeypatch.setattr(adam, "has_fused_kernel", lambda _: True)
    for one, two in zip(weights, trained(fused, make_optimizer(fused, options), range(3)), strict=True):
        torch.testing.assert_close(one, two)
    assert len(calls) == 3
    second = make_optimizer(resumed, options)
    second.load_state_dict(saved)
    for one, two in zip(weights, trained(resumed, second, range(1, 3)), strict=True):
        torch.testing.assert_close(one, two)


def noted(function: Any, calls: list[Any]) -> Any:
    """The function, whose calls are counted."""

    def call(*args: Any, **more: Any) -> Any:
        calls.append(len(args))
        return function(*args, **more)

    return call
