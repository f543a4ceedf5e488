"""The history of a training run: losses, validation scores, the best step, and divergence."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cab.config.run_config import TrainerConfig
from cab.runner.failures import DivergedError

if TYPE_CHECKING:
    from engines.torch.loop import SingleProcess

Entry = dict[str, float | None]


class LossMean:
    """The mean loss since the last entry, kept on the device so that no step synchronizes."""

    def __init__(self, total: float = 0.0, steps: float = 0.0) -> None:
        self._total: Tensor | float = total
        self._steps = steps
        self._bad_step: Tensor | None = None

    def add(self, loss: Tensor, step: int, pieces: int) -> None:
        """Add the loss of one of the ``pieces`` micro-batches of ``step``."""
        self._total = self._total + (loss.detach() / pieces).double()
        self._steps += 1 / pieces
        bad = torch.where(torch.isfinite(loss), 0, step)
        self._bad_step = bad if self._bad_step is None else torch.where(self._bad_step > 0, self._bad_step, bad)

    def mean(self) -> float:
        """Return the mean over steps, 0 without any."""
        return float(self._total) / max(1, self._steps)

    def bad_step(self) -> int:
        """Return the first step with a NaN or infinite loss, or 0."""
        return 0 if self._bad_step is None else int(self._bad_step)

    def state(self) -> list[float]:
        """Return the constructor's arguments."""
        return [float(self._total), self._steps]


class History:
    """Entries of ``step``, ``loss`` and ``validation``, and what depends on them; equal in all processes.

    ``loss`` is the task's loss. Entries have ``auxiliary_loss`` if modules of the network added losses.
    """

    def __init__(self, config: TrainerConfig, *, steps: int, steps_per_epoch: int, processes: SingleProcess) -> None:
        self.entries: list[Entry] = []
        self._losses = LossMean()
        self._auxiliary: LossMean | None = None
        self.best_step = 0
        self.steps_to_solve: int | None = None
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
        """Add the losses of one of the ``pieces`` micro-batches of ``step``."""
        self._losses.add(loss, step, pieces)
        if auxiliary is not None:
            self._auxiliary = self._auxiliary or LossMean()
            self._auxiliary.add(auxiliary, step, pieces)

    def is_due(self, step: int) -> bool:
        """Return whether there is an entry after ``step``."""
        return step % self._every == 0 or step == self._total

    @property
    def ends_training(self) -> bool:
        """Whether validation reached ``trainer.stop_at``, or has not improved for ``trainer.patience`` entries."""
        has_stalled = self._config.patience is not None and self._stale >= self._config.patience
        return has_stalled or self.steps_to_solve is not None

    def check_losses(self, step: int) -> None:
        """Raise DivergedError if a loss was NaN or infinite; without ``stop_when_diverged`` only after the last step.

        Losses are read every tenth step, since reading one waits for the device.
        """
        if not (step % 10 == 0 or step % self._config.checkpoint_every == 0 or self.is_due(step)):
            return
        bad = int(self._processes.max(self._losses.bad_step()))
        self._diverged_at = (self._diverged_at or bad) if bad else 0
        if bad and (self._config.stop_when_diverged or step >= self._total):
            raise DivergedError(self._diverged_at)

    def add(self, step: int, score: float | None) -> Entry:
        """Append the entry after ``step``: the mean loss since the last entry, and the validation score or None."""
        entry: Entry = {"step": step, "loss": self._processes.mean(self._losses.mean()), "validation": None}
        if self._auxiliary is not None:
            entry["auxiliary_loss"] = self._processes.mean(self._auxiliary.mean())
        self._losses, self._auxiliary = LossMean(), None
        if score is not None:
            score = entry["validation"] = self._processes.broadcast(score)
            if score < self._best:
                self._best, self.best_step, self._stale = score, step, 0
            else:
                self._stale += 1
            if self._config.stop_at is not None and score <= self._config.stop_at:
                self.steps_to_solve = step
        self.entries.append(entry)
        return entry

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs."""
        return {
            "entries": self.entries,
            "best": [self._best, self.best_step, self._stale],
            "steps_to_solve": self.steps_to_solve,
            "diverged_at": self._diverged_at,
            "loss": self._losses.state(),
            "auxiliary": self._auxiliary and self._auxiliary.state(),
            "seconds": self.earlier_seconds + time.perf_counter() - self._started,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.entries = list(state["entries"])
        self._best, self.best_step, self._stale = state["best"]
        self.steps_to_solve = state["steps_to_solve"]
        self._diverged_at = state["diverged_at"]
        self._losses = LossMean(*state["loss"])
        self._auxiliary = LossMean(*state["auxiliary"]) if state["auxiliary"] else None
        self.earlier_seconds = state["seconds"]


def _steps_between_entries(validate_every: str | int | None, *, steps: int, steps_per_epoch: int) -> int:
    if validate_every is None:
        return max(1, steps // 100)
    return steps_per_epoch if validate_every == "epoch" else int(validate_every)
