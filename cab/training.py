"""Contract between modules and training loops; the loop of ``engines/torch`` and the fairseq plug-in follow it.

A training step consists of:

1. one or more forward and backward passes, each with the loss ``loss + auxiliary_loss(model)``;
2. a step of the optimizer, which is built over ``parameter_groups(model, ...)``;
3. one call of ``after_optimizer_step(model)``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cab.padding import PaddingMasks

_recomputing: ContextVar[bool] = ContextVar("recomputing", default=False)


@dataclass(frozen=True)
class ParamGroupOverride:
    """Optimizer settings of one parameter; None means the setting of the other parameters.

    Attributes:
        learning_rate: highest learning rate, after warm-up.
        weight_decay: weight decay.
    """

    learning_rate: float | None = None
    weight_decay: float | None = None


def recompute(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``function(*arguments)`` and recompute its activations in the backward pass instead of storing them.

    Modules add auxiliary losses and statistics in the first forward pass only.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    if torch.compiler.is_compiling():  # the compiler repeats operators, not the Python code that collects losses
        return checkpoint(function, *arguments, use_reentrant=False)
    return checkpoint(
        function, *arguments, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), _recomputation())
    )


def is_recomputing() -> bool:
    """Return whether this forward pass is a recomputation in the backward pass."""
    return _recomputing.get()


@contextlib.contextmanager
def _recomputation() -> Iterator[None]:
    token = _recomputing.set(True)
    try:
        yield
    finally:
        _recomputing.reset(token)


class TrainableModule(nn.Module):
    """A module with auxiliary losses, buffers that are updated in training, and its own optimizer settings.

    Every attention is one. A subclass calls :meth:`add_loss` and :meth:`accumulate_statistics` in its forward pass, and
    overrides :meth:`update_buffers` and :meth:`param_group_overrides`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._losses: list[Tensor] = []
        self._statistics: dict[str, Tensor] = {}

    def add_loss(self, loss: Tensor, padding: PaddingMasks | None = None) -> None:
        """Add an auxiliary loss to this forward pass; outside of training mode, do nothing.

        Args:
            loss: one value per target, [B, N], or a scalar. The loss of a target may depend on the same inputs as its
                output (in causal patterns, on nothing later); a scalar may depend on parameters only.
            padding: padding masks; losses of padded targets are excluded from the mean.
        """
        if not self.training:
            return
        if padding is not None and padding.query is not None:
            loss = loss.masked_fill(padding.query, 0.0).sum() / (~padding.query).sum().clamp(min=1)
        loss = loss.mean()  # also when recomputing: checkpointing requires the same operations
        if not is_recomputing():
            self._losses.append(loss)

    def auxiliary_loss(self) -> Tensor | None:
        """Return the sum of the losses added since the last call; None if there are none."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).sum() if losses else None

    @torch.no_grad()
    def accumulate_statistics(self, **statistics: Tensor) -> None:
        """Add to the statistics that :meth:`update_buffers` gets after the step; in training mode only."""
        if self.training and not is_recomputing():
            for name, x in statistics.items():
                self._statistics[name] = self._statistics[name] + x if name in self._statistics else x.detach().clone()

    def pop_statistics(self) -> dict[str, Tensor]:
        """Return and reset the statistics accumulated since the last call."""
        statistics, self._statistics = self._statistics, {}
        return statistics

    def update_buffers(self, **statistics: Tensor) -> None:
        """Update buffers in place from the statistics of a step, summed over its passes and all processes.

        Buffers change only here: a forward pass never changes the state_dict.
        """
        raise NotImplementedError(
            f"{type(self).__name__} accumulates {', '.join(statistics)}: implement update_buffers() to use them"
        )

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        """Return the optimizer settings of parameters, by their names in this module, that differ from the others."""
        return {}


def on_device_of(like: Tensor, x: Tensor) -> Tensor:
    """Return ``x``, which was computed on the CPU, on the device of ``like``, without waiting for that device.

    A copy from memory that is not pinned would wait until the device has finished all earlier work.
    """
    return x if like.device.type == "cpu" else x.pin_memory().to(like.device, non_blocking=True)


def _trainable_modules(model: nn.Module) -> Iterator[TrainableModule]:
    return (module for module in model.modules() if isinstance(module, TrainableModule))


def auxiliary_loss(model: nn.Module) -> Tensor | None:
    """Return the sum of the auxiliary losses of all modules since the last call; None if there are none."""
    losses = [loss for learner in _trainable_modules(model) if (loss := learner.auxiliary_loss()) is not None]
    return torch.stack(losses).sum() if losses else None


def after_optimizer_step(model: nn.Module) -> None:
    """Update the buffers of all modules from the statistics of the step, summed over all processes."""
    shared = torch.distributed.is_available() and torch.distributed.is_initialized()
    for learner in _trainable_modules(model):
        statistics = learner.pop_statistics()
        if not statistics:
            continue
        if shared:
            for total in statistics.values():
                torch.distributed.all_reduce(total)
        with torch.no_grad():
            learner.update_buffers(**statistics)


def parameter_groups(model: nn.Module, *, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameter groups for a torch optimizer, grouped by the overrides of their modules.

    Parameters without an override have the given learning rate and weight decay.

    Raises:
        ValueError: an override is for a name that is not a parameter of its module.
    """
    plain = ParamGroupOverride()
    rules = dict.fromkeys(model.parameters(), plain)
    for learner in _trainable_modules(model):
        parameters = dict(learner.named_parameters())
        for name, rule in learner.param_group_overrides().items():
            if name not in parameters:
                raise ValueError(f"{type(learner).__name__} overrides '{name}', which is not one of its parameters")
            rules[parameters[name]] = rule
    return [
        {
            "params": [parameter for parameter, other in rules.items() if other == rule],
            "lr": learning_rate if rule.learning_rate is None else rule.learning_rate,
            "weight_decay": weight_decay if rule.weight_decay is None else rule.weight_decay,
        }
        for rule in dict.fromkeys(sorted(rules.values(), key=lambda rule: rule != plain))
    ]
