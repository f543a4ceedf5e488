"""The ``trainer`` group of the configuration, checked: batches, optimizer, schedule, validation, precision."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cab.errors import UserError
from cab.registry.options import (
    Limit,
    Natural,
    NonNegativeFloat,
    Positive,
    annotations_of,
    check_types,
)

if TYPE_CHECKING:
    import torch


Workers = Annotated[int, Limit("from 0 to 256", lambda value: 0 <= value <= 256)]
Share = Annotated[float, Limit("from 0 to below 1", lambda value: 0 <= value < 1)]


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """See configs/trainer/default.yaml for the meaning of each; a float is a finite number from 0."""

    batch_size: Positive
    micro_batch_size: Positive | None
    strategy: Literal["ddp", "fsdp"]
    max_epochs: Natural | None
    max_steps: Natural | None
    optimizer: Literal["adam", "adamw"]
    learning_rate: NonNegativeFloat
    betas: tuple[Share, Share]
    eps: NonNegativeFloat
    weight_decay: NonNegativeFloat
    decay_vectors: bool
    max_grad_norm: NonNegativeFloat
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt", "exponential", "late_exponential"]
    warmup_steps: Natural
    lr_decay: NonNegativeFloat
    lr_decay_epochs: Annotated[int | float, Limit("above 0", lambda value: value > 0)]
    lr_min: NonNegativeFloat
    validate_every: Literal["epoch"] | Positive | None
    stop_at: NonNegativeFloat | None
    patience: Positive | None
    checkpoint_selection: Literal["best", "last", "average"]
    average_every: Positive
    average_count: Positive
    precision: Literal["32-true", "bf16-mixed", "16-mixed"]
    checkpoint_every: Positive
    num_workers: Workers
    stop_when_diverged: bool
    compile: bool
    float32_matmul_precision: Literal["highest", "high"]
    memory_length: Natural

    def __post_init__(self) -> None:
        check_types(vars(self), annotations_of(TrainerConfig), {}, "trainer")
        if (self.max_epochs is None) == (self.max_steps is None):
            raise UserError("set exactly one of trainer.max_epochs and trainer.max_steps")
        stops_early = self.patience is not None or self.stop_at is not None
        if self.validate_every is None and (self.checkpoint_selection == "best" or stops_early):
            raise UserError(
                "trainer.checkpoint_selection=best, trainer.patience and trainer.stop_at need validations: set "
                "trainer.validate_every"
            )

    def num_steps(self, steps_per_epoch: int) -> int:
        """Optimization steps of the whole run."""
        return self.max_steps if self.max_steps is not None else (self.max_epochs or 0) * steps_per_epoch

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return the autocast context of training, validation and evaluation; on a CPU float16 becomes bfloat16."""
        import torch

        half = torch.float16 if self.precision == "16-mixed" and device.type == "cuda" else torch.bfloat16
        return torch.autocast(device.type, half, enabled=self.precision != "32-true", cache_enabled=False)

    @contextlib.contextmanager
    def matmul_precision(self) -> Iterator[None]:
        """Inside the block float32 products are as exact as ``float32_matmul_precision`` says."""
        import torch

        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(self.float32_matmul_precision)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)

    def rate(self, steps_per_epoch: int) -> Callable[[int], float]:
        """Return the schedule: the learning rate after ``step`` steps as a factor of the peak rate."""
        total = self.num_steps(steps_per_epoch)

        def factor(step: int) -> float:
            if self.schedule.endswith("exponential") and step >= self.warmup_steps:
                epochs = max(0, step // steps_per_epoch - (self.schedule == "late_exponential"))
                return max(self.lr_min, self.lr_decay ** (epochs / self.lr_decay_epochs))
            return rate_factor(step, schedule=self.schedule, warmup=self.warmup_steps, total=total)

        return factor


def rate_factor(step: int, *, schedule: str, warmup: int, total: int) -> float:
    """Return the learning rate after ``step`` of ``total`` steps as a factor of the peak, for schedules by step."""
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "linear":
        return max(0.0, (total - step) / max(1, total - warmup))
    if schedule == "cosine":
        return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup)))
    if schedule == "inverse_sqrt":
        return math.sqrt(max(1, warmup) / max(1, step))
    return 1.0
