"""Training with Lightning: the module around a task and a backbone, validation, and checkpoints to resume from."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cab.backbone import Backbone
from cab.errors import UserError
from cab.runner.faults import Diverged, Preempted, StopSignals
from cab.runner.optimizer import TrainerConfig
from cab.runner.order import SeededItems, StepBatches, mix_seed
from cab.task import Task

log = logging.getLogger(__name__)


class Training(L.LightningModule):
    """The task's loss on the backbone. Every random number of a step follows from (seed, step)."""

    def __init__(self, task: Task, backbone: Backbone, config: TrainerConfig, order: StepBatches) -> None:
        super().__init__()
        self.task = task
        self.backbone = backbone
        self.compiled: Backbone = torch.compile(backbone) if config.compile else backbone  # type: ignore[assignment]
        self.config = config
        self.order = order
        self._epoch: int | None = None

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        epoch = batch_idx // self.order.batches_per_epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self.task.begin_epoch(self.backbone, epoch)
        torch.manual_seed(mix_seed(self.order.seed, batch_idx))

    def training_step(self, batch: Any) -> Tensor:
        loss = self.task.loss(self.compiled, batch)
        self.log("loss", loss.detach(), prog_bar=True)
        return loss

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self.config.make_optimizer(self.backbone)
        rate = self.config.rate(self.order.batches_per_epoch // self.config.accumulate or 1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class LossMean:
    """The mean of the losses since the last entry, kept on their device so that no step waits for it."""

    def __init__(self, total: float = 0.0, count: int = 0) -> None:
        self._total: Tensor | float = total
        self._count = count
        self._bad_step: Tensor | None = None

    def add(self, loss: Tensor, step: int) -> None:
        self._total = self._total + loss.double()
        self._count += 1
        bad = torch.where(torch.isfinite(loss), 0, step)
        self._bad_step = bad if self._bad_step is None else torch.where(self._bad_step > 0, self._bad_step, bad)

    def mean(self) -> float:
        return float(self._total) / max(1, self._count)

    def bad_step(self) -> int:
        """The first step whose loss was no number; 0 when there was none."""
        return 0 if self._bad_step is None else int(self._bad_step)

    def state(self) -> list[float]:
        return [float(self._total), self._count]


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
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.best_step, self.stale = state["best"], state["best_step"], state["stale"]
        self.steps, self.diverged_at = state["steps"], state["diverged_at"]
        self.history = list(state["history"])
        self.losses = LossMean(*state["loss"])
        self._saved_best = self.best_step

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        assert isinstance(pl_module, Training)
        self.losses.add(outputs["loss"].detach(), batch_idx // self.config.accumulate + 1)
        if (batch_idx + 1) % self.config.accumulate:
            return
        step = self.steps = trainer.global_step
        last = step >= self.total
        if last or step % 10 == 0 or step % self.every == 0 or step % self.config.checkpoint_every == 0:
            self._check_losses()
        if step % self.every == 0 or last:
            self._note(trainer, pl_module, step)
        if self.config.keep == "average" and step in averaged_steps(self.config, self.total):
            save_whole(pl_module.backbone.state_dict(), self.folder / f"average-{step:08d}.pt")
        if self.config.patience is not None and self.stale >= self.config.patience:
            trainer.should_stop = True
        stop = self.signals.received
        if step % self.config.checkpoint_every == 0 or last or trainer.should_stop or stop is not None:
            self._save(trainer, step)
        if stop is not None:
            raise Preempted(stop)

    def _check_losses(self) -> None:
        """Diverged at the first step whose loss is no number, or if the run may go on, when it has ended so."""
        bad = self.losses.bad_step()
        self.diverged_at = (self.diverged_at or bad) if bad else 0
        if bad and (self.config.stop_when_diverged or self.steps >= self.total):
            raise Diverged(self.diverged_at)

    def _note(self, trainer: L.Trainer, module: Training, step: int) -> None:
        """An entry of the history: the training loss since the last one, and a validation if there is to be one."""
        entry: dict[str, float | None] = {"step": step, "loss": self.losses.mean(), "validation": None}
        self.losses = LossMean()
        if self.config.validate_every is not None:
            entry["validation"] = self._validate(trainer, module, step)
        self.history.append(entry)
        trainer.logger.log_metrics(  # type: ignore[union-attr]
            {name: value for name, value in entry.items() if value is not None and name != "step"}, step=step
        )
        log.info(
            "step %s", ", ".join(f"{n} {v:.4f}" if n != "step" else f"{v}" for n, v in entry.items() if v is not None)
        )

    def _validate(self, trainer: L.Trainer, module: Training, step: int) -> float:
        module.backbone.eval()
        with torch.no_grad(), trainer.precision_plugin.forward_context():
            score = module.task.validate(module.backbone, DeviceBatches(module.device))
        module.backbone.train()
        if score < self.best:
            self.best, self.best_step, self.stale = score, step, 0
            if self.config.keep == "best":
                save_whole(module.backbone.state_dict(), self.best_file(step))
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


def _as_it_is(batch: Any) -> Any:
    return batch


class DeviceBatches:
    """Batches in order, whole, moved to the device: what a task is given to validate and evaluate."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, dataset: Dataset[Any], batch_size: int) -> Iterator[Any]:
        loader = DataLoader(dataset, batch_size=batch_size, collate_fn=_as_it_is)
        for batch in loader:
            yield L.pytorch.utilities.move_data_to_device(batch, self.device)


class StderrProgress(TQDMProgressBar):
    """Lightning's progress bar on stderr, where logs go; tables have stdout to themselves."""

    def init_train_tqdm(self) -> Tqdm:
        return Tqdm(
            desc=self.title,
            position=0,
            disable=self.is_disabled or not sys.stderr.isatty(),
            leave=False,
            dynamic_ncols=True,
            file=sys.stderr,
            smoothing=0,
        )

    def __init__(self, title: str) -> None:
        super().__init__(refresh_rate=10)
        self.title = title

    def on_train_epoch_start(self, trainer: L.Trainer, *_: Any) -> None:
        self.train_progress_bar.reset(total=trainer.max_steps)
        self.train_progress_bar.initial = 0
        self.train_progress_bar.set_description(self.title)


def train(
    task: Task,
    backbone: Backbone,
    config: TrainerConfig,
    *,
    seed: int,
    device: torch.device,
    folder: Path,
    title: str,
    loggers: list[Any],
    signals: StopSignals,
) -> Watch:
    """Train, or go on from the newest checkpoint in ``folder``; the weights to evaluate are then in ``backbone``."""
    dataset = task.training_set
    size = len(dataset)  # type: ignore[arg-type]
    order = StepBatches(num_items=size, batch_size=config.batch_size, num_batches=0, seed=seed)
    steps_per_epoch = max(1, order.batches_per_epoch // config.accumulate)
    steps = config.num_steps(steps_per_epoch)
    order.num_batches = steps * config.accumulate
    module = Training(task, backbone, config, order)
    if config.keep == "average":
        averaged_steps(config, steps)
    watch = Watch(folder, config, steps=steps, steps_per_epoch=steps_per_epoch, signals=signals)
    trainer = L.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=1,
        max_steps=steps,
        max_epochs=-1,
        precision=config.precision,  # type: ignore[arg-type]
        gradient_clip_val=config.clip_norm or None,
        accumulate_grad_batches=config.accumulate,
        logger=loggers,
        log_every_n_steps=max(1, min(50, steps)),
        callbacks=[watch, StderrProgress(title)],
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        plugins=[LightningEnvironment()],  # not Slurm's, which would requeue jobs beside the launcher
        default_root_dir=folder,
    )
    resume = newest_checkpoint(folder)
    if resume is not None:
        order.start = int(resume.stem.removeprefix("step-")) * config.accumulate
        log.info("resuming from step %d", order.start // config.accumulate)
    loader: DataLoader[Any] = DataLoader(
        SeededItems(dataset, seed),
        batch_sampler=order,  # type: ignore[arg-type]  # it yields draws, which SeededItems takes
        collate_fn=_as_it_is,
        num_workers=config.num_workers,
        pin_memory=device.type == "cuda",
    )
    if steps:
        signals.wait_for_step = True
        trainer.fit(module, loader, ckpt_path=resume, weights_only=True)
        signals.wait_for_step = False
    if config.keep == "best" and watch.best_step:
        backbone.load_state_dict(torch.load(watch.best_file(watch.best_step), map_location=device, weights_only=True))
    if config.keep == "average":
        files = [folder / f"average-{step:08d}.pt" for step in averaged_steps(config, watch.steps)]
        backbone.load_state_dict(average_weights(files, device))
    backbone.to(device).eval()
    return watch
