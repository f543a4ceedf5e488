"""Optimisers and learning-rate schedules, as functions of the step alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import nn

from cab.errors import UserError

OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
SCHEDULES = ("constant", "linear", "inverse_sqrt", "exponential")
KEPT = ("best", "last", "average")
STRATEGIES = ("ddp", "fsdp")
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
CHOICES = {
    "optimizer": tuple(OPTIMIZERS),
    "schedule": SCHEDULES,
    "keep": KEPT,
    "strategy": STRATEGIES,
    "precision": PRECISIONS,
}
WHOLE = {
    "batch_size": 1,
    "micro_batch_size": 1,
    "max_epochs": 0,
    "max_steps": 0,
    "warmup_steps": 0,
    "patience": 1,
    "average_every": 1,
    "average_count": 1,
    "checkpoint_every": 1,
    "num_workers": 0,
}
"""Whole numbers, and the smallest that each can be."""
NULLABLE = ("micro_batch_size", "max_epochs", "max_steps", "patience")
NUMBERS = ("learning_rate", "eps", "weight_decay", "clip_norm", "decay", "decay_epochs", "floor")
SWITCHES = ("decay_vectors", "stop_when_diverged", "compile")


@dataclass(frozen=True)
class TrainerConfig:
    """The ``trainer`` group, checked. See configs/trainer/default.yaml for the meaning of each."""

    batch_size: int
    micro_batch_size: int | None
    strategy: str
    max_epochs: int | None
    max_steps: int | None
    optimizer: str
    learning_rate: float
    betas: Sequence[float]
    eps: float
    weight_decay: float
    decay_vectors: bool
    clip_norm: float
    schedule: str
    warmup_steps: int
    decay: float
    decay_epochs: float
    floor: float
    validate_every: str | int | None
    patience: int | None
    keep: str
    average_every: int
    average_count: int
    precision: str
    checkpoint_every: int
    num_workers: int
    stop_when_diverged: bool
    compile: bool

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise UserError(f"trainer.{name} must be one of {', '.join(known)}, got '{getattr(self, name)}'")
        for name, smallest in WHOLE.items():
            self._check_whole(name, smallest)
        for name in NUMBERS:
            if not _is_number(getattr(self, name)) or getattr(self, name) < 0:
                raise UserError(f"trainer.{name} must be a number from 0, got {getattr(self, name)!r}")
        for name in SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"trainer.{name} must be true or false, got {getattr(self, name)!r}")
        if self.decay_epochs == 0:
            raise UserError("trainer.decay_epochs must be more than 0")
        if (self.max_epochs is None) == (self.max_steps is None):
            raise UserError("set exactly one of trainer.max_epochs and trainer.max_steps")
        self._check_betas()
        self._check_validation()

    def _check_whole(self, name: str, smallest: int) -> None:
        value, nullable = getattr(self, name), name in NULLABLE
        if not (value is None and nullable) and (not _is_whole(value) or value < smallest):
            null = " or null" if nullable else ""
            raise UserError(f"trainer.{name} must be a whole number from {smallest}{null}, got {value!r}")

    def _check_betas(self) -> None:
        betas = self.betas
        pair = isinstance(betas, (list, tuple)) and len(betas) == 2
        if not pair or not all(_is_number(beta) and 0 <= beta < 1 for beta in betas):
            raise UserError(f"trainer.betas must be two numbers from 0 to below 1, as [0.9,0.999], got {betas!r}")

    def _check_validation(self) -> None:
        every = self.validate_every
        if every is None and (self.keep == "best" or self.patience is not None):
            raise UserError("trainer.keep=best and trainer.patience need validations: set trainer.validate_every")
        if every not in (None, "epoch") and (not _is_whole(every) or every < 1):
            raise UserError(f"trainer.validate_every must be 'epoch', a number of steps, or null, got {every!r}")

    def num_steps(self, steps_per_epoch: int) -> int:
        """Optimisation steps of the whole run."""
        return self.max_steps if self.max_steps is not None else (self.max_epochs or 0) * steps_per_epoch

    def make_optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Weight decay applies to all parameters, or without ``decay_vectors`` to those of two or more dimensions."""
        parameters = list(network.parameters())
        decayed = [p for p in parameters if self.decay_vectors or p.ndim > 1]
        groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": self.weight_decay}]
        if len(decayed) < len(parameters):
            groups.append({"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0})
        betas = (self.betas[0], self.betas[1])
        return OPTIMIZERS[self.optimizer](groups, lr=self.learning_rate, betas=betas, eps=self.eps)

    def autocast(self, device: torch.device) -> torch.autocast:
        """Where a network is used outside training: in the precision that Lightning trains it in."""
        half = torch.float16 if self.precision == "16-mixed" and device.type == "cuda" else torch.bfloat16
        return torch.autocast(device.type, half, enabled=self.precision != "32-true", cache_enabled=False)

    def rate(self, steps_per_epoch: int) -> Callable[[int], float]:
        """The learning rate after ``step`` steps, as a factor of the peak rate."""
        total = self.num_steps(steps_per_epoch)

        def factor(step: int) -> float:
            if self.schedule == "exponential" and step >= self.warmup_steps:
                return max(self.floor, self.decay ** (step // steps_per_epoch / self.decay_epochs))
            return rate_factor(step, schedule=self.schedule, warmup=self.warmup_steps, total=total)

        return factor


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def rate_factor(step: int, *, schedule: str, warmup: int, total: int) -> float:
    """The learning rate after ``step`` of ``total`` steps, as a factor of the peak rate, where epochs do not matter."""
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "linear":
        return max(0.0, (total - step) / max(1, total - warmup))
    if schedule == "inverse_sqrt":
        return math.sqrt(max(1, warmup) / max(1, step))
    return 1.0
