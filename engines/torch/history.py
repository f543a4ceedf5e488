"""What a training notes of itself: losses, validations, the best of them, and whether it has diverged."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cab.config.trainer_config import TrainerConfig
from cab.runner.failures import Diverged
from engines.torch.parallel import SingleProcess

Entry = dict[str, float | None]


class LossMean:
    """The mean of the losses of the steps since the last entry, kept on their device so that no step waits for it."""

    def __init__(self, total: float = 0.0, steps: float = 0.0) -> None:
        self._total: Tensor | float = total
        self._steps = steps
        self._bad_step: Tensor | None = None

    def add(self, loss: Tensor, step: int, pieces: int) -> None:
        """``loss`` of one of the ``pieces`` micro-batches of ``step``."""
        self._total = self._total + (loss.detach() / pieces).double()
        self._steps += 1 / pieces
        bad = torch.where(torch.isfinite(loss), 0, step)
        self._bad_step = bad if self._bad_step is None else torch.where(self._bad_step > 0, self._bad_step, bad)

    def mean(self) -> float:
        return float(self._total) / max(1, self._steps)

    def bad_step(self) -> int:
        """The first step whose loss was no number; 0 when there was none."""
        return 0 if self._bad_step is None else int(self._bad_step)

    def state(self) -> list[float]:
        return [float(self._total), self._steps]


class History:
    """Entries of ``step``, ``loss`` and ``validation``, and what follows from them; in every process the same.

    ``loss`` is the task's; ``auxiliary_loss``, in the entries where there is some, what the network's modules added.
    """

    def __init__(self, config: TrainerConfig, *, steps: int, steps_per_epoch: int, processes: SingleProcess) -> None:
        self.entries: list[Entry] = []
        self._losses = LossMean()
        self._auxiliary: LossMean | None = None
        self.best_step = 0
        self.earlier_seconds = 0.0
        self._config = config
        self._total = steps
        self._every = _steps_between_entries(config.validate_every, steps=steps, steps_per_epoch=steps_per_epoch)
        self._processes = processes
        self._best = math.inf
        self._stale = 0
        self._diverged_at = 0
        self._started = time.perf_counter()

    def add_losses(self, loss: Tensor, auxiliary: Tensor | None, step: int, pieces: int) -> None:
        """Of one of the ``pieces`` micro-batches of ``step``."""
        self._losses.add(loss, step, pieces)
        if auxiliary is not None:
            self._auxiliary = self._auxiliary or LossMean()
            self._auxiliary.add(auxiliary, step, pieces)

    def is_due(self, step: int) -> bool:
        """Whether there is an entry after ``step``."""
        return step % self._every == 0 or step == self._total

    @property
    def has_stalled(self) -> bool:
        """Whether validation has not got better for ``trainer.patience`` entries."""
        return self._config.patience is not None and self._stale >= self._config.patience

    def check_losses(self, step: int) -> None:
        """Diverged at the first step whose loss is no number, or if the run may go on, when it has ended so.

        It is not asked at every step: to know a loss is to wait for it.
        """
        if not (step % 10 == 0 or step % self._config.checkpoint_every == 0 or self.is_due(step)):
            return
        bad = int(self._processes.largest(self._losses.bad_step()))
        self._diverged_at = (self._diverged_at or bad) if bad else 0
        if bad and (self._config.stop_when_diverged or step >= self._total):
            raise Diverged(self._diverged_at)

    def add(self, step: int, validate: Callable[[], float]) -> Entry:
        """The entry after ``step``: the mean loss since the last one, and a validation if there is to be one."""
        entry: Entry = {"step": step, "loss": self._processes.mean(self._losses.mean()), "validation": None}
        if self._auxiliary is not None:
            entry["auxiliary_loss"] = self._processes.mean(self._auxiliary.mean())
        self._losses, self._auxiliary = LossMean(), None
        if self._config.validate_every is not None:
            score = entry["validation"] = self._processes.broadcast(validate())
            if score < self._best:
                self._best, self.best_step, self._stale = score, step, 0
            else:
                self._stale += 1
        self.entries.append(entry)
        return entry

    def state_dict(self) -> dict[str, Any]:
        return {
            "entries": self.entries,
            "best": [self._best, self.best_step, self._stale],
            "diverged_at": self._diverged_at,
            "loss": self._losses.state(),
            "auxiliary": self._auxiliary and self._auxiliary.state(),
            "seconds": self.earlier_seconds + time.perf_counter() - self._started,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.entries = list(state["entries"])
        self._best, self.best_step, self._stale = state["best"]
        self._diverged_at = state["diverged_at"]
        self._losses = LossMean(*state["loss"])
        self._auxiliary = LossMean(*state["auxiliary"]) if state["auxiliary"] else None
        self.earlier_seconds = state["seconds"]


def _steps_between_entries(validate_every: str | int | None, *, steps: int, steps_per_epoch: int) -> int:
    if validate_every is None:
        return max(1, steps // 100)
    return steps_per_epoch if validate_every == "epoch" else int(validate_every)
