"""Optimisers and learning-rate schedules, as functions of the step alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.nn import Parameter

from cab.errors import UserError

OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
SCHEDULES = ("constant", "linear", "inverse_sqrt", "halve_each_epoch")


@dataclass(frozen=True)
class TrainerConfig:
    """The ``trainer`` group, checked. See configs/trainer/default.yaml for the meaning of each."""

    batch_size: int
    accumulate: int
    max_epochs: int | None
    max_steps: int | None
    optimizer: str
    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    clip_norm: float
    schedule: str
    warmup_steps: int
    validate_every: str | int
    patience: int | None
    keep: str
    precision: str
    checkpoint_every: int
    compile: bool

    def __post_init__(self) -> None:
        for name, known in (("optimizer", tuple(OPTIMIZERS)), ("schedule", SCHEDULES), ("keep", ("best", "last"))):
            if getattr(self, name) not in known:
                raise UserError(f"trainer.{name} must be one of {', '.join(known)}, got '{getattr(self, name)}'")
        for name in ("batch_size", "accumulate", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise UserError(f"trainer.{name} must be at least 1, got {getattr(self, name)}")
        if (self.max_epochs is None) == (self.max_steps is None):
            raise UserError("set exactly one of trainer.max_epochs and trainer.max_steps")
        if (self.max_epochs or self.max_steps or 0) < 1:
            raise UserError("trainer.max_epochs or trainer.max_steps must be at least 1")
        if self.validate_every != "epoch" and (not isinstance(self.validate_every, int) or self.validate_every < 1):
            raise UserError(f"trainer.validate_every must be 'epoch' or a number of steps, got {self.validate_every!r}")

    def num_steps(self, steps_per_epoch: int) -> int:
        """Optimisation steps of the whole run."""
        return self.max_steps if self.max_steps is not None else (self.max_epochs or 0) * steps_per_epoch

    def make_optimizer(self, parameters: Iterable[Parameter]) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.optimizer](
            parameters, lr=self.learning_rate, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay
        )

    def rate(self, steps_per_epoch: int) -> Callable[[int], float]:
        """The learning rate after ``step`` steps, as a factor of the peak rate."""
        total, warmup = self.num_steps(steps_per_epoch), self.warmup_steps

        def factor(step: int) -> float:
            if step < warmup:
                return (step + 1) / warmup
            if self.schedule == "linear":
                return max(0.0, (total - step) / max(1, total - warmup))
            if self.schedule == "inverse_sqrt":
                return math.sqrt(max(1, warmup) / max(1, step))
            if self.schedule == "halve_each_epoch":
                return 0.5 ** (step // steps_per_epoch)
            return 1.0

        return factor
