"""The contract of :mod:`cab.training` in fairseq: auxiliary losses, buffer updates, parameter groups.

CAB's networks install it in the task that builds them. It needs no argument of `fairseq-train` and works with every
criterion and every optimizer with a single parameter group.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.optim.amp_optimizer import AMPOptimizer
from torch import nn

from cab import UserError
from cab.training import after_optimizer_step, auxiliary_loss, parameter_groups


def keep_training_contract(task: Any, autocast: str | None) -> None:
    """Extend the forward passes and updates that fairseq makes through ``task`` to complete training steps.

    Args:
        task: a task of fairseq.
        autocast: type of the matrix products in training, such as ``bfloat16``; fairseq's `--amp` is float16 only.
    """
    task.train_step = functools.partial(_train_step, task, autocast)
    task.optimizer_step = functools.partial(_optimizer_step, task)


def _train_step(
    task: Any, autocast: str | None, sample: Any, model: nn.Module, criterion: nn.Module, *rest: Any, **more: Any
) -> Any:
    """Run forward and backward with ``loss + auxiliary loss``; fairseq later divides sums by ``sample_size``."""

    def complete_loss(*inputs: Any) -> Any:
        device = next(model.parameters()).device.type
        with torch.autocast(device, getattr(torch, autocast)) if autocast else contextlib.nullcontext():
            loss, sample_size, logged = criterion(*inputs)
        auxiliary = auxiliary_loss(model)
        if auxiliary is None:
            return loss, sample_size, logged
        metrics.log_scalar("auxiliary_loss", auxiliary.detach())
        return loss + auxiliary * sample_size, sample_size, logged

    auxiliary_loss(model)  # from a pass that ran out of memory, whose batch fairseq skips
    return type(task).train_step(task, sample, model, complete_loss, *rest, **more)


def _optimizer_step(task: Any, optimizer: Any, model: nn.Module, update_num: int) -> None:
    metrics.log_scalar("learning_rate", optimizer.get_lr(), weight=0)  # fairseq's "lr" is that of the next step
    with _own_rates(optimizer, model):
        if isinstance(optimizer, AMPOptimizer):  # its own step divides the gradients by the scale a second time
            optimizer.scaler.step(optimizer.optimizer)
            optimizer.scaler.update()
        else:
            type(task).optimizer_step(task, optimizer, model, update_num)
    after_optimizer_step(model)


@contextlib.contextmanager
def _own_rates(optimizer: Any, model: nn.Module) -> Iterator[None]:
    """Split parameters into groups for one update; the schedule and the checkpoints see a single group."""
    config, inner = optimizer.optimizer_config, optimizer.optimizer
    own = parameter_groups(model, learning_rate=config["lr"], weight_decay=config.get("weight_decay", 0.0))
    if len(own) == 1:
        yield
        return
    whole = inner.param_groups
    if len(whole) > 1 or {*whole[0]["params"]} != {x for group in own for x in group["params"] if x.requires_grad}:
        raise UserError(
            "an attention with its own learning rates needs an optimizer of the network's parameters "
            "in one group: no --optimizer composite, and --amp instead of --fp16"
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
        group.update(counted)  # fused optimizers store their step counts there
    finally:
        inner.param_groups = whole
