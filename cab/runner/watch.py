"""What happens between the steps of a run: validation, the best weights, checkpoints to resume from, stopping."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cab.errors import UserError
from cab.runner.faults import Diverged, Preempted, StopSignals
from cab.runner.optimizer import TrainerConfig
from cab.runner.processes import whole_weights

if TYPE_CHECKING:
    from cab.runner.training import Training

log = logging.getLogger(__name__)

LAST = "last.pt"
"""Whole weights at the end of a run of several processes."""


class LossMean:
    """The mean of the losses of the steps since the last entry, kept on their device so that no step waits for it."""

    def __init__(self, total: float = 0.0, steps: float = 0.0) -> None:
        self._total: Tensor | float = total
        self._steps = steps
        self._bad_step: Tensor | None = None

    def add(self, loss: Tensor, step: int, part: float) -> None:
        """``loss`` of a micro-batch, divided by their number in a step; ``part`` is what one of them is of a step."""
        self._total = self._total + loss.double()
        self._steps += part
        bad = torch.where(torch.isfinite(loss), 0, step)
        self._bad_step = bad if self._bad_step is None else torch.where(self._bad_step > 0, self._bad_step, bad)

    def mean(self) -> float:
        return float(self._total) / max(1, self._steps)

    def bad_step(self) -> int:
        """The first step whose loss was no number; 0 when there was none."""
        return 0 if self._bad_step is None else int(self._bad_step)

    def state(self) -> list[float]:
        return [float(self._total), self._steps]


class Watch(L.Callback):
    """Validates, remembers the best weights, stops without progress, and saves checkpoints, all by the step.

    One callback does it in a fixed order (validate, then save), so a run that is cut and resumed passes
    through the same states as one that is not.
    """

    def __init__(
        self, folder: Path, config: TrainerConfig, *, steps: int, steps_per_epoch: int, signals: StopSignals
    ) -> None:
        self.folder = folder
        self.signals = signals
        self.config = config
        self.total = steps
        self.every = _steps_between_entries(config.validate_every, steps=steps, steps_per_epoch=steps_per_epoch)
        self.best = math.inf
        self.best_step = 0
        self.stale = 0
        self.history: list[dict[str, float | None]] = []
        self.steps = 0
        self.diverged_at = 0
        self.losses = LossMean()
        self.earlier_seconds = 0.0
        self._started = time.perf_counter()
        self._saved_best = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best,
            "best_step": self.best_step,
            "stale": self.stale,
            "steps": self.steps,
            "diverged_at": self.diverged_at,
            "history": self.history,
            "loss": self.losses.state(),
            "seconds": self.earlier_seconds + time.perf_counter() - self._started,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.best_step, self.stale = state["best"], state["best_step"], state["stale"]
        self.steps, self.diverged_at = state["steps"], state["diverged_at"]
        self.history = list(state["history"])
        self.losses = LossMean(*state["loss"])
        self.earlier_seconds = state["seconds"]
        self._saved_best = self.best_step

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: Training,  # type: ignore[override]
        outputs: Any,
        batch: Any,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        accumulate = pl_module.order.shares.accumulate
        self.losses.add(outputs["loss"].detach(), batch_idx // accumulate + 1, 1 / accumulate)
        if (batch_idx + 1) % accumulate:
            return
        step = self.steps = trainer.global_step
        last = step >= self.total
        if last or step % 10 == 0 or step % self.every == 0 or step % self.config.checkpoint_every == 0:
            self._check_losses(trainer)
        if step % self.every == 0 or last:
            self._note(trainer, pl_module, step)
        if self.config.keep == "average" and step in averaged_steps(self.config, self.total):
            self._save_weights(trainer, pl_module, averaged_file(self.folder, step))
        if self.config.patience is not None and self.stale >= self.config.patience:
            trainer.should_stop = True
        stop = self._stop_signal(trainer, step)
        if step % self.config.checkpoint_every == 0 or last or trainer.should_stop or stop:
            self._save(trainer, step)
        if (last or trainer.should_stop) and trainer.world_size > 1:
            self._save_weights(trainer, pl_module, self.folder / LAST)
        if stop:
            raise Preempted(stop)

    def _stop_signal(self, trainer: L.Trainer, step: int) -> int:
        """The signal that asks to stop, 0 for none. Several processes ask each other, every tenth step."""
        received = self.signals.received or 0
        if trainer.world_size == 1:
            return received
        return int(agree(trainer, received, "max")) if step % 10 == 0 else 0

    def _save_weights(self, trainer: L.Trainer, module: Training, path: Path) -> None:
        weights = whole_weights(module.backbone)
        if trainer.is_global_zero:
            save_whole(weights, path)

    def _check_losses(self, trainer: L.Trainer) -> None:
        """Diverged at the first step whose loss is no number, or if the run may go on, when it has ended so."""
        bad = int(agree(trainer, self.losses.bad_step(), "max"))
        self.diverged_at = (self.diverged_at or bad) if bad else 0
        if bad and (self.config.stop_when_diverged or self.steps >= self.total):
            raise Diverged(self.diverged_at)

    def _note(self, trainer: L.Trainer, module: Training, step: int) -> None:
        """An entry of the history: the training loss since the last one, and a validation if there is to be one."""
        entry: dict[str, float | None] = {
            "step": step,
            "loss": agree(trainer, self.losses.mean(), "mean"),
            "validation": None,
        }
        self.losses = LossMean()
        if self.config.validate_every is not None:
            entry["validation"] = self._validate(trainer, module, step)
        self.history.append(entry)
        if not trainer.is_global_zero:
            return
        metrics = {name: value for name, value in entry.items() if value is not None and name != "step"}
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step=step)
        log.info(
            "step %s", ", ".join(f"{n} {v:.4f}" if n != "step" else f"{v}" for n, v in entry.items() if v is not None)
        )

    def _validate(self, trainer: L.Trainer, module: Training, step: int) -> float:
        module.backbone.eval()
        with torch.no_grad(), self.config.autocast(module.device):
            score = module.task.validate(module.backbone, DeviceBatches(module.device))
        module.backbone.train()
        score = trainer.strategy.broadcast(score)  # batch norms have not seen the same in every process
        if score < self.best:
            self.best, self.best_step, self.stale = score, step, 0
            if self.config.keep == "best":
                self._save_weights(trainer, module, self.best_file(step))
        else:
            self.stale += 1
        return score

    def best_file(self, step: int) -> Path:
        return self.folder / f"best-{step:08d}.pt"

    def _save(self, trainer: L.Trainer, step: int) -> None:
        """Write the checkpoint whole or not at all; keep it and the one before."""
        path = self.folder / f"step-{step:08d}.ckpt"
        temporary = path.with_suffix(".tmp")
        trainer.save_checkpoint(temporary)
        if not trainer.is_global_zero:
            return
        temporary.replace(path)
        for old in checkpoints(self.folder)[:-2]:
            old.unlink()
        kept = {self.best_file(self.best_step), self.best_file(self._saved_best)}
        for old in set(self.folder.glob("best-*.pt")) - kept:
            old.unlink()
        self._saved_best = self.best_step


def _steps_between_entries(validate_every: str | int | None, *, steps: int, steps_per_epoch: int) -> int:
    if validate_every is None:
        return max(1, steps // 100)
    return steps_per_epoch if validate_every == "epoch" else int(validate_every)


def agree(trainer: L.Trainer, value: float, how: str) -> float:
    """The mean or the largest of the processes' values."""
    if trainer.world_size == 1:
        return value
    here = torch.tensor(value, dtype=torch.float64, device=trainer.strategy.root_device)
    return float(trainer.strategy.reduce(here, reduce_op=how))


def kept_weights(
    folder: Path, config: TrainerConfig, watch: Watch, device: torch.device, *, shared: bool
) -> Mapping[str, Tensor] | None:
    """The weights to evaluate, read from disk; None for those that the network has. ``shared``: by processes."""
    if config.keep == "best" and watch.best_step:
        return torch.load(watch.best_file(watch.best_step), map_location=device, weights_only=True)
    if config.keep == "average" and watch.steps:
        return average_weights([averaged_file(folder, step) for step in averaged_steps(config, watch.steps)], device)
    if shared and watch.steps:
        return torch.load(folder / LAST, map_location=device, weights_only=True)
    return None


def averaged_file(folder: Path, step: int) -> Path:
    return folder / f"average-{step:08d}.pt"


def averaged_steps(config: TrainerConfig, steps: int) -> list[int]:
    """The steps whose weights are averaged: the last ``average_count`` multiples of ``average_every``."""
    chosen = list(range(config.average_every, steps + 1, config.average_every))[-config.average_count :]
    if not chosen:
        raise UserError(f"no step of {steps} is a multiple of trainer.average_every {config.average_every}")
    return chosen


def save_whole(state: Mapping[str, Any], path: Path) -> None:
    """Write the file whole or not at all."""
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def average_weights(paths: Sequence[Path], device: torch.device) -> dict[str, Tensor]:
    """The mean of state dicts; what is not a floating-point number is the last one's."""
    mean: dict[str, Tensor] = {}
    for path in paths:
        state = torch.load(path, map_location=device, weights_only=True)
        for name, value in state.items():
            if name in mean and value.is_floating_point():
                mean[name] += value.double() / len(paths)
            else:
                mean[name] = value.double() / len(paths) if value.is_floating_point() else value
    return mean


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints to resume from, oldest first."""
    return sorted(folder.glob("step-*.ckpt"))


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that can be read; broken ones are reported and passed over."""
    for path in reversed(checkpoints(folder)):
        try:
            torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever is wrong with it, the one before may be whole
            log.warning("skipped the broken checkpoint %s (%s)", path, type(error).__name__)
            continue
        return path
    return None


def as_it_is(batch: Any) -> Any:
    return batch


class DeviceBatches:
    """Batches in order, whole, moved to the device: what a task is given to validate and evaluate."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, dataset: Dataset[Any], batch_size: int) -> Iterator[Any]:
        loader = DataLoader(dataset, batch_size=batch_size, collate_fn=as_it_is)
        for batch in loader:
            yield L.pytorch.utilities.move_data_to_device(batch, self.device)
