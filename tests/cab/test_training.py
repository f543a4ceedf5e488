"""What modules ask of a training loop: losses of their own, buffers that learn, rules for parameters."""

import pytest
import torch
from torch import Tensor, nn

from cab.padding import PaddingMasks
from cab.training import (
    ParamGroupOverride,
    TrainableModule,
    after_optimizer_step,
    auxiliary_loss,
    parameter_groups,
    recompute,
)


class Centroid(TrainableModule):
    """Tells the mean of what it has seen in each step, and costs the square of its input."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(2.0))
        self.other = nn.Parameter(torch.tensor(3.0))
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor, padding: PaddingMasks | None = None) -> Tensor:
        self.accumulate_statistics(total=x.sum(), count=torch.tensor(float(x.numel())))
        self.add_loss((self.rate * x).square(), padding)
        return (self.rate * x).exp()

    def update_buffers(self, *, total: Tensor, count: Tensor) -> None:
        self.mean.copy_(total / count)

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        return {"rate": ParamGroupOverride(learning_rate=0.5, weight_decay=0.0)}


def test_losses_are_means_over_real_targets_and_are_given_once():
    module = Centroid()
    x = torch.tensor([[1.0, 2.0, 100.0], [3.0, 100.0, 100.0]])
    hidden = torch.tensor([[False, False, True], [False, True, True]])
    module(x, PaddingMasks(query=hidden))
    module(torch.tensor([[1.0]]))
    loss = auxiliary_loss(nn.Sequential(module))
    assert loss is not None
    assert loss.item() == pytest.approx(4 * (1 + 4 + 9) / 3 + 4)
    assert auxiliary_loss(module) is None


def test_nothing_is_gathered_in_evaluation():
    module = Centroid().eval()
    module(torch.ones(1, 1))
    assert auxiliary_loss(module) is None
    after_optimizer_step(module)
    assert module.mean == 0.0


def test_buffers_learn_once_a_step_from_all_its_passes():
    module = Centroid()
    module(torch.tensor([[2.0, 4.0]]))
    module(torch.tensor([[9.0]]))
    assert module.mean == 0.0
    after_optimizer_step(module)
    assert module.mean == 5.0
    after_optimizer_step(module)
    assert module.mean == 5.0


def test_activations_formed_anew_add_no_loss_and_no_statistics():
    x = torch.tensor([[0.5, -0.25]])
    results = []
    for again in (False, True):
        module = Centroid()
        output = recompute(module, x) if again else module(x)
        own = auxiliary_loss(module)
        assert own is not None
        (output.sum() + own).backward()
        assert auxiliary_loss(module) is None
        assert module.pop_statistics() == {"total": x.sum(), "count": 2.0}
        results.append(module.rate.grad)
    torch.testing.assert_close(*results)


def test_parameters_have_the_rates_of_their_rules():
    model = nn.Sequential(nn.Linear(2, 2), Centroid())
    plain, own = parameter_groups(model, learning_rate=0.1, weight_decay=0.01)
    assert (plain["lr"], plain["weight_decay"], len(plain["params"])) == (0.1, 0.01, 3)
    assert (own["lr"], own["weight_decay"]) == (0.5, 0.0)
    assert own["params"] == [model[1].rate]


def test_a_rule_for_no_parameter_is_named():
    module = Centroid()
    del module.rate
    with pytest.raises(ValueError, match="overrides 'rate', which is not one of its parameters"):
        parameter_groups(module, learning_rate=0.1, weight_decay=0.0)
