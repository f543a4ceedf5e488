"""What :mod:`cab.training` asks of a training loop, in fairseq's: auxiliary losses, buffers that learn, own rates.

A network of ours puts it into the task that builds it, so it needs no argument of `fairseq-train`, and works with every
criterion and every optimiser that has one group of parameters.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from fairseq.logging import metrics
from torch import nn

from cab import UserError
from cab.training import after_optimizer_step, auxiliary_loss, parameter_groups


def keep_training_contract(task: Any) -> None:
    """Let the forward passes and the updates that fairseq makes through ``task`` be whole steps of training."""
    task.train_step = functools.partial(_train_step, task)
    task.optimizer_step = functools.partial(_optimizer_step, task)


def _train_step(task: Any, sample: Any, model: nn.Module, criterion: nn.Module, *rest: Any, **more: Any) -> Any:
    """Forward and backward, with ``loss + auxiliary loss``: fairseq divides sums by ``sample_size``, in the end."""

    def add_auxiliary_loss(_criterion: nn.Module, _inputs: Any, output: Any) -> Any:
        loss, sample_size, logged = output
        auxiliary = auxiliary_loss(model)
        if auxiliary is None:
            return output
        metrics.log_scalar("auxiliary_loss", auxiliary.detach())
        return loss + auxiliary * sample_size, sample_size, logged

    auxiliary_loss(model)  # of a pass that ran out of memory: fairseq leaves its batch out
    with criterion.register_forward_hook(add_auxiliary_loss):
        return type(task).train_step(task, sample, model, criterion, *rest, **more)


def _optimizer_step(task: Any, optimizer: Any, model: nn.Module, update_num: int) -> None:
    with _own_rates(optimizer, model):
        type(task).optimizer_step(task, optimizer, model, update_num)
    after_optimizer_step(model)


@contextlib.contextmanager
def _own_rates(optimizer: Any, model: nn.Module) -> Iterator[None]:
    """Parameters in groups by their rules, for one update: the schedule and the checkpoints know a single group."""
    config, inner = optimizer.optimizer_config, optimizer.optimizer
    own = parameter_groups(model, learning_rate=config["lr"], weight_decay=config.get("weight_decay", 0.0))
    if len(own) == 1:
        yield
        return
    whole = inner.param_groups
    if len(whole) > 1 or {*whole[0]["params"]} != {x for group in own for x in group["params"] if x.requires_grad}:
        raise UserError(
            "an attention with learning rates of its own needs an optimiser of the network's own parameters in one "
            "group: no --optimizer composite, and --amp or --memory-efficient-fp16 instead of --fp16"
        )
    [group] = whole
    inner.param_groups = [
        {
            **group,
            "params": [parameter for parameter in part["params"] if parameter.requires_grad],
            "lr": group["lr"] * part["lr"] / config["lr"],
            "weight_decay": part["weight_decay"],
        }
        for part in own
    ]
    try:
        yield
        counted = {name: value for name, value in inner.param_groups[0].items() if name not in own[0]}
        group.update(counted)  # fused optimisers count their steps there
    finally:
        inner.param_groups = whole
