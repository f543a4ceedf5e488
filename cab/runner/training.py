"""Training with Lightning: the module around a task and a backbone, and the loop over the steps of a run."""

from __future__ import annotations

import copy
import logging
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.utils.data import DataLoader

from cab.backbone import Backbone
from cab.runner.faults import StopSignals
from cab.runner.optimizer import TrainerConfig
from cab.runner.order import SeededItems, Shares, StepBatches, mix_seed
from cab.runner.processes import Processes, cluster_environment, make_strategy, shard, share_batch_norms
from cab.runner.watch import Watch, as_it_is, averaged_steps, kept_weights, newest_checkpoint
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
        self._is_sharded = False

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        number = self.order.number(batch_idx)
        epoch = number // self.order.shares.pieces // self.order.steps_per_epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self.task.begin_epoch(self.backbone, epoch)
        torch.manual_seed(mix_seed(self.order.seed, number))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Count micro-batches from the steps: this process may take others at once than those that wrote it."""
        done = self.order.start * self.order.shares.accumulate
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for counts in (progress["total"], progress["current"]):
            # The last one is never completed: checkpoints are written at its end, by a callback.
            counts.update(ready=done, started=done, processed=done, completed=done - 1)

    def configure_model(self) -> None:
        if self.config.strategy == "fsdp" and self.trainer.world_size > 1 and not self._is_sharded:
            shard(self.backbone, self.device_mesh["data_parallel"])  # type: ignore[index]
            self._is_sharded = True

    def training_step(self, batch: Any) -> Tensor:
        loss = self.task.loss(self.compiled, batch)
        self.log("loss", loss.detach(), prog_bar=True)
        return loss

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = self.config.make_optimizer(self.backbone)
        rate = self.config.rate(self.order.steps_per_epoch)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


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
    processes: Processes,
) -> Watch:
    """Train, or go on from the newest checkpoint in ``folder``; the weights to evaluate are then in ``backbone``."""
    dataset = task.training_set
    order = make_order(len(dataset), config, seed, processes)  # type: ignore[arg-type]
    steps = order.num_steps
    trained = copy.deepcopy(backbone) if config.strategy == "fsdp" and processes.count > 1 else backbone
    if processes.count > 1:
        share_batch_norms(trained)
    module = Training(task, trained, config, order)
    if config.keep == "average":
        averaged_steps(config, steps)
    watch = Watch(folder, config, steps=steps, steps_per_epoch=order.steps_per_epoch, signals=signals)
    trainer = L.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=processes.on_this_machine,
        num_nodes=processes.machines,
        strategy=make_strategy(config.strategy, processes),
        max_steps=steps,
        max_epochs=-1,
        precision=config.precision,  # type: ignore[arg-type]
        gradient_clip_val=config.clip_norm or None,
        accumulate_grad_batches=order.shares.accumulate,
        logger=loggers,
        log_every_n_steps=max(1, min(50, steps)),
        callbacks=[watch, StderrProgress(title)],
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        plugins=[cluster_environment(processes)],
        default_root_dir=folder,
    )
    resume = newest_checkpoint(folder)
    if resume is not None:
        order.start = int(resume.stem.removeprefix("step-"))
        log.info("resuming from step %d", order.start)
    loader: DataLoader[Any] = DataLoader(
        SeededItems(dataset, seed),
        batch_sampler=order,  # type: ignore[arg-type]  # it yields draws, which SeededItems takes
        collate_fn=as_it_is,
        num_workers=config.num_workers,
        pin_memory=device.type == "cuda",
    )
    if steps:
        signals.wait_for_step = True
        trainer.fit(module, loader, ckpt_path=resume, weights_only=True)
        signals.wait_for_step = False
    weights = kept_weights(folder, config, watch, device, shared=processes.count > 1)
    if weights is not None and processes.is_first:
        backbone.load_state_dict(weights)
    backbone.to(device).eval()
    return watch


def make_order(num_items: int, config: TrainerConfig, seed: int, processes: Processes) -> StepBatches:
    """The batches of the whole run, cut for these processes."""
    shares = Shares.cut(
        num_items=num_items,
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        rank=processes.rank,
        num_processes=processes.count,
    )
    order = StepBatches(num_items=num_items, shares=shares, num_steps=0, seed=seed)
    order.num_steps = config.num_steps(order.steps_per_epoch)
    return order
