"""A training step in one process; :mod:`engines.torch.parallel` shares it among several."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from cab.backbone import Backbone


class SingleProcess:
    """A run in one process, without communication."""

    def prepare_network(self, backbone: Backbone, device: torch.device) -> Backbone:
        """Return the network to train, on its device: the backbone itself, or a sharded copy."""
        return backbone.to(device)

    def prepare_objective(self, objective: nn.Module) -> nn.Module:
        """Return the objective as each process calls it."""
        return objective

    def micro_batch(self, objective: nn.Module, *, is_last: bool) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Enclose forward and backward of one micro-batch; gradients are exchanged after the last one of a step."""
        return contextlib.nullcontext()

    def mean(self, value: float) -> float:
        """Return the mean over processes."""
        return value

    def max(self, value: float) -> float:
        """Return the maximum over processes."""
        return value

    def broadcast(self, value: float) -> float:
        """Return the value of the first process."""
        return value
