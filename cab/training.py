"""What a module needs of a training loop beside the task's loss: every loop of this project keeps to it.

A step of training is: one or more forward and backward passes, each with ``loss + auxiliary_loss(model)``; the
optimiser, over ``parameter_groups(model, ...)``; then ``after_optimizer_step(model)``, once.
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
    """What one parameter is trained with; None is what the others have."""

    learning_rate: float | None = None
    weight_decay: float | None = None


def recompute(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)``, whose activations are formed anew in the backward pass.

    Modules inside gather losses and statistics in the first pass alone.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    if torch.compiler.is_compiling():  # the compiler repeats operators, not the code that gathers
        return checkpoint(function, *arguments, use_reentrant=False)
    return checkpoint(function, *arguments, use_reentrant=False, context_fn=_contexts)


def is_recomputing() -> bool:
    """Whether this forward pass repeats an earlier one."""
    return _recomputing.get()


def _contexts() -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    return contextlib.nullcontext(), _repeated()


@contextlib.contextmanager
def _repeated() -> Iterator[None]:
    token = _recomputing.set(True)
    try:
        yield
    finally:
        _recomputing.reset(token)


class TrainableModule(nn.Module):
    """A module with losses of its own, buffers that learn, and rules for its parameters; an attention is one."""

    def __init__(self) -> None:
        super().__init__()
        self._losses: list[Tensor] = []
        self._statistics: dict[str, Tensor] = {}

    def add_loss(self, loss: Tensor, padding: PaddingMasks | None = None) -> None:
        """Give the training loop a loss of this forward pass: of each target [B, N], or a number.

        The loss of a target may depend on what its output may depend on, in a causal pattern on nothing later; a
        number may depend on parameters alone. Padded targets do not count; the rest are averaged. Outside of
        training, and where activations are formed anew, nothing happens.
        """
        if not self.training:
            return
        if padding is not None and padding.query is not None:
            real = ~padding.query
            loss = loss.masked_fill(padding.query, 0.0).sum() / real.sum().clamp(min=1)
        loss = loss.mean()  # where activations are formed anew too: checkpointing wants the same operations
        if not is_recomputing():
            self._losses.append(loss)

    def auxiliary_loss(self) -> Tensor | None:
        """The sum of what forward passes in training mode added since the last call; None for nothing."""
        losses, self._losses = self._losses, []
        return torch.stack(losses).sum() if losses else None

    @torch.no_grad()
    def accumulate_statistics(self, **statistics: Tensor) -> None:
        """Add to the statistics from which buffers learn at the end of the step, in training mode only."""
        if self.training and not is_recomputing():
            for name, x in statistics.items():
                self._statistics[name] = self._statistics[name] + x if name in self._statistics else x.detach().clone()

    def pop_statistics(self) -> dict[str, Tensor]:
        """What was gathered since the last call."""
        statistics, self._statistics = self._statistics, {}
        return statistics

    def update_buffers(self, **statistics: Tensor) -> None:
        """Update buffers, in place, from the statistics of a step, summed over its passes and all processes.

        The one place where a buffer changes: a forward pass leaves the state_dict as it is.
        """
        raise NotImplementedError(f"{type(self).__name__} gathers {', '.join(statistics)} and has no update_buffers()")

    def param_group_overrides(self) -> dict[str, ParamGroupOverride]:
        """Parameters, by their names in this module, that are trained with a rate or weight decay of their own."""
        return {}


def _trainable_modules(model: nn.Module) -> Iterator[TrainableModule]:
    return (module for module in model.modules() if isinstance(module, TrainableModule))


def auxiliary_loss(model: nn.Module) -> Tensor | None:
    """The sum of its modules' own losses since the last call; None where there are none."""
    losses = [loss for learner in _trainable_modules(model) if (loss := learner.auxiliary_loss()) is not None]
    return torch.stack(losses).sum() if losses else None


def after_optimizer_step(model: nn.Module) -> None:
    """Let buffers that learn take in what the step's forward passes gathered, summed over all processes."""
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
    """Groups for a torch optimiser: parameters by the rules of their modules, the rest in the first group.

    Raises:
        ValueError: for a rule that names no parameter.
    """
    rules: dict[int, ParamGroupOverride] = {}
    for learner in _trainable_modules(model):
        own = dict(learner.named_parameters())
        for name, rule in learner.param_group_overrides().items():
            if name not in own:
                raise ValueError(f"{type(learner).__name__} has a rule for '{name}', which is none of its parameters")
            rules[id(own[name])] = rule
    plain = ParamGroupOverride()
    groups: dict[ParamGroupOverride, list[nn.Parameter]] = {plain: []}
    for parameter in model.parameters():
        groups.setdefault(rules.get(id(parameter), plain), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": learning_rate if rule.learning_rate is None else rule.learning_rate,
            "weight_decay": weight_decay if rule.weight_decay is None else rule.weight_decay,
        }
        for rule, parameters in groups.items()
        if parameters
    ]
