"""What a checkpoint has of the state of a run."""

import math

import pytest
import torch

from engines.torch.checkpoints import LossMean
from engines.torch.parallel import SingleProcess


@pytest.mark.parametrize(("losses", "bad_step"), [((1.0, math.nan), 2), ((math.inf, math.nan), 1), ((1.0, 2.0), 0)])
def test_a_resumed_mean_knows_the_first_loss_that_was_not_finite(losses, bad_step):
    """A run can be stopped between two checks of the losses."""
    mean = LossMean()
    for step, loss in enumerate(losses, start=1):
        mean.add(torch.tensor(loss), step, 1)
    resumed = LossMean(*mean.state(SingleProcess()))
    for state in (mean, resumed):
        state.add(torch.tensor(3.0), 3, 1)
        assert state.bad_step() == bad_step
        assert math.isfinite(state.mean()) == (bad_step == 0)
