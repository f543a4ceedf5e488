"""The ``trainer`` group of the configuration, checked: batches, optimiser, schedule, validation, precision."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeGuard

from cab.errors import UserError

if TYPE_CHECKING:
    import torch


MACHINE_KEYS = ("checkpoint_every", "micro_batch_size", "num_workers", "strategy")
"""What suits a machine and is not part of what is measured."""

ADDED = {"float32_matmul_precision": "highest", "memory_length": 0}
"""Settings that older records lack, and what those runs had."""


def _one_of(*names: str) -> Any:
    return field(metadata={"choices": names})


def _whole(smallest: int, *, nullable: bool = False) -> Any:
    return field(metadata={"smallest": smallest, "nullable": nullable})


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """See configs/trainer/default.yaml for the meaning of each; a float is a finite number from 0."""

    batch_size: int = _whole(1)
    micro_batch_size: int | None = _whole(1, nullable=True)
    strategy: str = _one_of("ddp", "fsdp")
    max_epochs: int | None = _whole(0, nullable=True)
    max_steps: int | None = _whole(0, nullable=True)
    optimizer: str = _one_of("adam", "adamw")
    learning_rate: float
    betas: Sequence[float]
    eps: float
    weight_decay: float
    decay_vectors: bool
    max_grad_norm: float
    schedule: str = _one_of("constant", "linear", "cosine", "inverse_sqrt", "exponential", "late_exponential")
    warmup_steps: int = _whole(0)
    lr_decay: float
    lr_decay_epochs: float
    lr_min: float
    validate_every: str | int | None
    patience: int | None = _whole(1, nullable=True)
    checkpoint_selection: str = _one_of("best", "last", "average")
    average_every: int = _whole(1)
    average_count: int = _whole(1)
    precision: str = _one_of("32-true", "bf16-mixed", "16-mixed")
    checkpoint_every: int = _whole(1)
    num_workers: int = _whole(0)
    stop_when_diverged: bool
    compile: bool
    float32_matmul_precision: str = _one_of("highest", "high")
    memory_length: int = _whole(0)

    def __post_init__(self) -> None:
        for each in fields(self):
            problem = _problem(getattr(self, each.name), each.type, each.metadata)
            if problem:
                raise UserError(f"trainer.{each.name} must be {problem}")
        if self.lr_decay_epochs == 0:
            raise UserError("trainer.lr_decay_epochs must be more than 0")
        if (self.max_epochs is None) == (self.max_steps is None):
            raise UserError("set exactly one of trainer.max_epochs and trainer.max_steps")
        self._check_betas()
        self._check_validation()

    def _check_betas(self) -> None:
        betas = self.betas
        pair = isinstance(betas, (list, tuple)) and len(betas) == 2
        if not pair or not all(_is_number(beta) and 0 <= beta < 1 for beta in betas):
            raise UserError(f"trainer.betas must be two numbers from 0 to below 1, as [0.9,0.999], got {betas!r}")

    def _check_validation(self) -> None:
        every = self.validate_every
        if every is None and (self.checkpoint_selection == "best" or self.patience is not None):
            raise UserError(
                "trainer.checkpoint_selection=best and trainer.patience need validations: set trainer.validate_every"
            )
        if every not in (None, "epoch") and (not _is_whole(every) or every < 1):
            raise UserError(f"trainer.validate_every must be 'epoch', a number of steps, or null, got {every!r}")

    def num_steps(self, steps_per_epoch: int) -> int:
        """Optimisation steps of the whole run."""
        return self.max_steps if self.max_steps is not None else (self.max_epochs or 0) * steps_per_epoch

    def autocast(self, device: torch.device) -> torch.autocast:
        """The precision that a network is trained, validated and evaluated in; no CPU trains in 16 bits of range."""
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
        """The learning rate after ``step`` steps, as a factor of the peak rate."""
        total = self.num_steps(steps_per_epoch)

        def factor(step: int) -> float:
            if self.schedule.endswith("exponential") and step >= self.warmup_steps:
                epochs = max(0, step // steps_per_epoch - (self.schedule == "late_exponential"))
                return max(self.lr_min, self.lr_decay ** (epochs / self.lr_decay_epochs))
            return rate_factor(step, schedule=self.schedule, warmup=self.warmup_steps, total=total)

        return factor


def measured(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are a part of what is measured, those added later only where they are not as they were."""
    return {
        name: value
        for name, value in trainer.items()
        if name not in MACHINE_KEYS and not (name in ADDED and value == ADDED[name])
    }


def rate_factor(step: int, *, schedule: str, warmup: int, total: int) -> float:
    """The learning rate after ``step`` of ``total`` steps, as a factor of the peak rate, where epochs do not matter."""
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "linear":
        return max(0.0, (total - step) / max(1, total - warmup))
    if schedule == "cosine":
        return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup)))
    if schedule == "inverse_sqrt":
        return math.sqrt(max(1, warmup) / max(1, step))
    return 1.0


def _problem(value: Any, kind: Any, bounds: Any) -> str:
    """What the value of a field must be and is not; empty when it is."""
    if "choices" in bounds and value not in bounds["choices"]:
        return f"one of {', '.join(bounds['choices'])}, got '{value}'"
    null = bounds.get("nullable", False) and value is None
    if "smallest" in bounds and not null and not (_is_whole(value) and value >= bounds["smallest"]):
        return f"a whole number from {bounds['smallest']}{' or null' if bounds['nullable'] else ''}, got {value!r}"
    if kind == "float" and (not _is_number(value) or value < 0):
        return f"a number from 0, got {value!r}"
    if kind == "bool" and not isinstance(value, bool):
        return f"true or false, got {value!r}"
    return ""


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))
