"""Run by torchrun on two processes: batch norm over both against the batch norm of one; writes the differences."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from cab.errors import UserError
from cab.runner.processes import Processes, find_processes
from engines.torch.parallel import Distributed, convert_batch_norms


def main(path: Path) -> None:
    dist.init_process_group("gloo")
    processes = find_processes()
    torch.manual_seed(5)
    whole = torch.randn(3, 8, 6, 5) * 3 + 1
    weights = torch.randn(6, 5)

    def network() -> nn.Module:
        torch.manual_seed(6)
        return nn.Sequential(nn.Conv1d(6, 6, 3, padding=1), nn.BatchNorm1d(6, momentum=0.3))

    alone, shared = network(), network()
    convert_batch_norms(shared)
    own = slice(4 * processes.rank, 4 * processes.rank + 4)
    worst = {"output": 0.0, "gradient": 0.0, "state": 0.0, "evaluation": 0.0}

    def note(name: str, a: torch.Tensor, b: torch.Tensor) -> None:
        worst[name] = max(worst[name], (a.double() - b.double()).abs().max().item())

    for x in whole:
        expected, got = alone(x), shared(x[own])
        note("output", expected[own], got)
        alone.zero_grad()
        shared.zero_grad()
        ((expected * weights) ** 2).mean().backward()
        ((got * weights) ** 2).mean().backward()
        for a, b in zip(alone.parameters(), shared.parameters(), strict=True):
            gradient = b.grad.clone()
            dist.all_reduce(gradient)
            note("gradient", a.grad, gradient / 2)
    for a, b in zip(alone.state_dict().values(), shared.state_dict().values(), strict=True):
        note("state", a, b)
    note("evaluation", alone.eval()(whole[0]), shared.eval()(whole[0]))
    run_cells(processes)
    if processes.is_first:
        path.write_text(json.dumps(worst))
    os._exit(0)  # as `cab run` does


class Part(nn.Module):
    """A network of which one layer is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def run_cells(processes: Processes) -> None:
    """Train steps of several cells, one after the other, in these processes."""
    work = Distributed(processes, "ddp", torch.device("cpu"))
    for number in range(30):
        model: Any = work.prepare_objective(nn.Linear(2, 2) if number % 2 else Part(), lambda: not number % 2)  # noqa: B023
        assert model.find_unused_parameters == (not number % 2)
        train_two_steps(work, model)
    with pytest.raises(UserError, match="unused_parameters"):  # the first step is no sign of the others
        train_two_steps(work, work.prepare_objective(Part(), lambda: False))


def train_two_steps(work: Distributed, model: nn.Module) -> None:
    for _ in range(2):
        with work.micro_batch(model, is_last=True):
            model(torch.ones(1, 2)).sum().backward()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
