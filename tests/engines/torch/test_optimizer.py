"""The optimizer is torch's, its schedule and decay follow the configuration, and its state resumes bit-exactly."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from engines.torch.optimizer import Adam, load_optimizer_state, make_optimizer, make_scheduler, optimizer_state
from tests.cab.config.test_run_config_trainer import config


def trained(network: nn.Module, optimizer: Any, steps: range) -> list[torch.Tensor]:
    """Return the weights after steps that leave one layer without a gradient."""
    for step in steps:
        optimizer.zero_grad()
        network[0](torch.randn(5, 3, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in network.parameters()]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))


def same(one: list[torch.Tensor], two: list[torch.Tensor]) -> list[bool]:
    return [torch.equal(a, b) for a, b in zip(one, two, strict=True)]


@pytest.mark.slow  # torch's own classes import the compiler
@pytest.mark.parametrize(("name", "expected"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_those_of_torch(name, expected, weight_decay):
    """Bit-identical to the fused class of torch; equal to the unfused one up to rounding."""
    found, fused, unfused = network(), network(), network()
    options = {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": weight_decay}
    before = [parameter.detach().clone() for parameter in found.parameters()]
    after = trained(found, make_optimizer(found, config(optimizer=name, **options)), range(5))
    assert all(same(after, trained(fused, expected(fused.parameters(), fused=True, **options), range(5))))
    for one, two in zip(after, trained(unfused, expected(unfused.parameters(), **options), range(5)), strict=True):
        torch.testing.assert_close(one, two)
    assert same(before, after) == [False, False, True, True]


@pytest.mark.parametrize("saved_fused", [True, False])
def test_a_saved_state_resumes_bit_exactly(saved_fused):
    """With the kernel of this run, whichever kernel the checkpoint was written with."""
    expected, resumed = network(), network()
    optimizer, first = make_optimizer(expected, config()), make_optimizer(resumed, config())
    for group in [*optimizer.param_groups, *first.param_groups]:
        group["fused"] = saved_fused
    trained(expected, optimizer, range(3))
    trained(resumed, first, range(3))
    for group in optimizer.param_groups:
        group["fused"] = True
    second = make_optimizer(resumed, config())
    load_optimizer_state(second, optimizer_state(first))
    assert all(same(trained(expected, optimizer, range(3, 6)), trained(resumed, second, range(3, 6))))


@pytest.mark.parametrize("start", [0, 3])
def test_the_schedule_scales_the_rate_of_every_group(start):
    """A step moves each weight by its rate, since its gradient is constant; a resumed run continues the schedule."""
    weights = [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))]
    groups = [{"params": [w], "lr": lr, "weight_decay": 0.0} for w, lr in zip(weights, (0.1, 0.2), strict=True)]
    optimizer = Adam(groups, eps=0.0)
    options = config(max_epochs=None, max_steps=8, schedule="linear", warmup_steps=0)
    scheduler = make_scheduler(optimizer, options, steps_per_epoch=2, start=start)
    for step in range(start, 8):
        before = [w.item() for w in weights]
        sum(weights).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        factor = options.rate(2)(step)
        assert factor == (8 - step) / 8
        moved = [a - w.item() for a, w in zip(before, weights, strict=True)]
        assert moved == pytest.approx([0.1 * factor, 0.2 * factor], rel=1e-4)


def test_vectors_can_be_left_out_of_weight_decay():
    layer = nn.Linear(3, 2)
    groups = make_optimizer(layer, config(weight_decay=0.1, decay_vectors=False)).param_groups
    assert [(group["weight_decay"], [p.ndim for p in group["params"]]) for group in groups] == [(0.1, [2]), (0.0, [1])]
    [group] = make_optimizer(layer, config(weight_decay=0.1)).param_groups
    assert (group["weight_decay"], len(group["params"])) == (0.1, 2)


def test_gradients_that_overflow_skip_the_update():
    """Under ``precision=16-mixed`` the gradient scaler leaves weights and step counts as they are."""
    layer = nn.Linear(3, 2)
    optimizer, scaler = make_optimizer(layer, config()), torch.amp.GradScaler("cpu", init_scale=4.0)
    for factor, moves in ((math.inf, False), (1.0, True)):
        before = layer.weight.detach().clone()
        scaler.scale(layer(torch.full((1, 3), factor)).sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert torch.equal(before, layer.weight) != moves
        assert [state["step"].item() for state in optimizer_state(optimizer).values()] == [float(moves)] * 2
