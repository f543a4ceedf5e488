"""Learning-rate schedules identical to those of CAB's training loop: ``--lr-scheduler cab``."""

# No `from __future__ import annotations`: fairseq reads the types of the configuration's fields.

from dataclasses import dataclass, field
from typing import Any, List  # noqa: UP035  # fairseq knows this spelling alone

from fairseq.dataclass import FairseqDataclass
from fairseq.optim.lr_scheduler import FairseqLRScheduler, register_lr_scheduler
from omegaconf import II

from cab.recipe import rate_factor


@dataclass
class ScheduleConfig(FairseqDataclass):
    """Options of :class:`Schedule`."""

    schedule: str = field(default="constant", metadata={"help": "constant, linear, cosine or inverse_sqrt"})
    warmup_updates: int = field(
        default=0, metadata={"help": "number of updates in which the learning rate rises to --lr"}
    )
    total_num_update: int = field(
        default=0, metadata={"help": "number of updates after which a linear or cosine schedule reaches 0"}
    )
    lr: List[float] = II("optimization.lr")  # noqa: UP006, RUF009


@register_lr_scheduler("cab", dataclass=ScheduleConfig)
class Schedule(FairseqLRScheduler):
    """Warm-up and decay as in CAB; fairseq's own warm-ups start with an update at rate 0 and lag by one update."""

    def __init__(self, cfg: ScheduleConfig, optimizer: Any) -> None:
        super().__init__(cfg, optimizer)
        self.step_update(0)

    def step(self, epoch: int, val_loss: float | None = None) -> float:
        """Leave the rate unchanged at the end of an epoch."""
        super().step(epoch, val_loss)
        return self.optimizer.get_lr()

    def step_update(self, num_updates: int) -> float:
        """Set the rate after each update."""
        cfg = self.cfg
        factor = rate_factor(num_updates, schedule=cfg.schedule, warmup=cfg.warmup_updates, total=cfg.total_num_update)
        self.optimizer.set_lr(cfg.lr[0] * factor)
        return self.optimizer.get_lr()
