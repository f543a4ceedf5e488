"""The loop over the steps of a run, for one process and for several."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from cab.attention import DecodeState
from cab.backbone import Backbone
from cab.runner.batches import DeviceBatches, StepBatches, mix_seed, on_device
from cab.runner.engine import Run
from cab.runner.faults import Preempted
from cab.runner.folder import save_whole
from cab.runner.progress import counted
from cab.task import Task
from cab.training import after_optimizer_step, auxiliary_loss
from engines.torch.adam import make_optimizer
from engines.torch.checkpoints import Checkpoints, averaged_steps
from engines.torch.history import History
from engines.torch.loggers import Loggers
from engines.torch.memories import Memories
from engines.torch.parallel import OneProcess
from engines.torch.profiling import NoProfile, StepProfile

log = logging.getLogger(__name__)


class Objective(nn.Module):
    """The task's loss on the network, and the losses that its modules add: what processes exchange gradients of.

    Where rows go on from batch to batch, it is given what they remember and gives what they remember then.
    """

    def __init__(self, task: Task, network: Backbone, *, is_compiled: bool, recurs: bool) -> None:
        super().__init__()
        self.task = task
        self.network = network
        self._recurs = recurs
        self._called = (torch.compile(network) if is_compiled else network,)  # in a tuple, so no second submodule

    def forward(self, batch: Any, memory: DecodeState | None) -> tuple[Tensor, Tensor | None, DecodeState | None]:
        if self._recurs:
            loss, memory = self.task.recurrent_loss(self._called[0], batch, memory)  # type: ignore[arg-type]
        else:
            loss = self.task.loss(self._called[0], batch)  # type: ignore[arg-type]
        return loss, auxiliary_loss(self.network), memory


class Loop:
    """Every random number of a step follows from (seed, step), so a run that was cut goes on as if it was not.

    Args:
        network: on the device of the run; trained in place, from the newest checkpoint if there is one.
        order: the batches of the whole run.
    """

    def __init__(self, run: Run, network: Backbone, order: StepBatches, processes: OneProcess) -> None:
        self.run, self.network, self.order, self.processes = run, network, order, processes
        self.task, self.config = run.cell.task, run.cell.trainer
        self.history = History(
            self.config, steps=order.num_steps, steps_per_epoch=order.steps_per_epoch, processes=processes
        )
        self.checkpoints = Checkpoints(run.folder)
        self.memories = Memories(order.shares.accumulate)
        saved = self.checkpoints.newest()
        if saved is not None:
            order.start = saved["step"]
            log.info("resuming from step %d", order.start)
            network.load_state_dict(saved["network"])
            self.history.load_state_dict(saved["history"])
            self.memories.load(saved.get("memories"), run.device)
        objective = Objective(self.task, network, is_compiled=self.config.compile, recurs=self.config.memory_length > 0)
        self.objective = processes.spread(objective)
        self.optimizer = make_optimizer(network, self.config)
        self.rate = self.config.rate(order.steps_per_epoch)
        is_scaled = self.config.precision == "16-mixed" and run.device.type == "cuda"
        self.scaler = torch.amp.GradScaler(run.device.type, enabled=is_scaled)
        if saved is not None:
            self.optimizer.load_state_dict(saved["optimizer"])
            if saved["scaler"]:
                self.scaler.load_state_dict(saved["scaler"])
        self._epoch: int | None = None
        self.profile: NoProfile = StepProfile(run, order) if run.cell.config["profile"] else NoProfile()

    def train(self, batches: Iterable[Any], loggers: Loggers) -> int:
        """Make the steps that are left with ``batches``, the micro-batches from there on; how many steps were made."""
        step = self.order.start
        self.network.train()
        remaining = iter(batches)
        for index in self._progress():
            if self.history.has_stalled:
                break
            with self.profile.step(index):
                self._make_step(index, remaining)
            step = index + 1
            self._note(step, loggers)
        return step

    def _progress(self) -> Iterable[int]:
        if not self.run.processes.is_first:
            return range(self.order.start, self.order.num_steps)
        return counted(self.run.cell.title, self.order.start, self.order.num_steps)

    def _make_step(self, step: int, batches: Iterator[Any]) -> None:
        """Forward and backward of the micro-batches, then one update."""
        accumulate = self.order.shares.accumulate
        if step % self.order.steps_per_epoch == 0:
            self.memories.forget()
        for piece in range(accumulate):
            with self.profile.part("batch"):
                batch = on_device(next(batches), self.run.device)
            self._begin(step, self.order.number(step * accumulate + piece))
            with self.processes.step_part(self.objective, is_last=piece == accumulate - 1):
                with self.profile.part("forward"), self.config.autocast(self.run.device):
                    loss, auxiliary, self.memories[piece] = self.objective(batch, self.memories[piece])
                with self.profile.part("backward"):
                    total = (loss if auxiliary is None else loss + auxiliary) / accumulate
                    self.scaler.scale(total).backward()
            self.history.add_losses(loss, auxiliary, step + 1, accumulate)
        with self.profile.part("optimizer"):
            self._update(step)

    def _update(self, step: int) -> None:
        """Weights and statistics, from the gradients of the whole step."""
        self.optimizer.rate = self.rate(step)
        self.scaler.unscale_(self.optimizer)  # type: ignore[arg-type]  # it asks for no more than Adam has
        if self.config.max_grad_norm:
            nn.utils.clip_grad_norm_(self.optimizer.parameters, self.config.max_grad_norm)
        self.scaler.step(self.optimizer)  # type: ignore[arg-type]
        self.scaler.update()
        after_optimizer_step(self.network)
        self.optimizer.zero_grad()

    def _begin(self, step: int, number: int) -> None:
        """Announce the epoch, and seed the micro-batch."""
        epoch = step // self.order.steps_per_epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self.task.begin_epoch(self.network, epoch)
        torch.manual_seed(mix_seed(self.order.seed, number))

    def _note(self, step: int, loggers: Loggers) -> None:
        """After a step, in this order: validate, save, stop; so a run that goes on passes through the same states."""
        self.history.check_losses(step)
        if self.history.is_due(step):
            entry = self.history.add(step, self._validate)
            if self.history.best_step == step and self.config.checkpoint_selection == "best":
                self._save_weights(self.checkpoints.best(step))
            loggers.write(entry)
        if self.config.checkpoint_selection == "average" and step in averaged_steps(self.config, self.order.num_steps):
            self._save_weights(self.checkpoints.averaged(step))
        stop = self._stop_signal(step)
        is_last = step == self.order.num_steps or self.history.has_stalled
        if step % self.config.checkpoint_every == 0 or is_last or stop:
            self._save(step)
        if stop:
            raise Preempted(stop)

    def _stop_signal(self, step: int) -> int:
        """The signal that asks to stop, 0 for none. Several processes ask each other, every tenth step."""
        received = self.run.signals.received or 0
        if self.run.processes.count == 1:
            return received
        return int(self.processes.largest(received)) if step % 10 == 0 else 0

    def _validate(self) -> float:
        self.network.eval()
        with torch.no_grad(), self.config.autocast(self.run.device):
            score = self.task.validate(self.network, DeviceBatches(self.run.device))
        self.network.train()
        return score

    def _save_weights(self, path: Any) -> None:
        weights = self.processes.weights(self.network)
        if self.run.processes.is_first:
            save_whole(weights, path)

    def _save(self, step: int) -> None:
        state = {
            "step": step,
            "network": self.processes.weights(self.network),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "history": self.history.state_dict(),
            "memories": self.memories.state(),
        }
        if self.run.processes.is_first:
            self.checkpoints.save(state, step=step, best_step=self.history.best_step)
