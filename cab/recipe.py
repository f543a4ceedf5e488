"""Learning rate and precision of a training, which every engine computes from the values of its configuration."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch


def rate_factor(
    step: int,
    *,
    schedule: str,
    warmup: int,
    total: int,
    steps_per_epoch: int = 1,
    decay: float = 1.0,
    decay_epochs: float = 1.0,
    minimum: float = 0.0,
) -> float:
    """Return the learning rate after ``step`` of ``total`` steps as a factor of the peak rate.

    Only the exponential schedules use the last four arguments.
    """
    if schedule.endswith("exponential") and step >= warmup:
        epochs = max(0, step // steps_per_epoch - (schedule == "late_exponential"))
        return max(minimum, decay ** (epochs / decay_epochs))
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "linear":
        return max(0.0, (total - step) / max(1, total - warmup))
    if schedule == "cosine":
        return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup)))
    if schedule == "inverse_sqrt":
        return math.sqrt(max(1, warmup) / max(1, step))
    return 1.0


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """Return the autocast context of training, validation and evaluation; on a CPU float16 becomes bfloat16."""
    half = torch.float16 if precision == "16-mixed" and device.type == "cuda" else torch.bfloat16
    return torch.autocast(device.type, half, enabled=precision != "32-true", cache_enabled=False)


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Use a precision for float32 products and cuDNN's float32 convolutions inside the block."""
    previous, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = precision != "highest"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)
        torch.backends.cudnn.allow_tf32 = convolutions
