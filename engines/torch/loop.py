"""The training loop, for one process and for several."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cab.attention import DecodeState
from cab.backbone import Backbone
from cab.errors import Preempted
from cab.runner.batches import DeviceBatches, StepBatches, mix_seed, on_device
from cab.runner.engine import Run
from cab.runner.folder import atomic_save
from cab.runner.progress import with_progress
from cab.task import Task
from cab.training import after_optimizer_step, auxiliary_loss
from engines.torch.checkpoints import Checkpoints, averaged_steps, checkpoint_files
from engines.torch.history import History
from engines.torch.loggers import Loggers
from engines.torch.optimizer import (
    load_optimizer_state,
    make_optimizer,
    make_scheduler,
    optimizer_state,
    parameters_of,
)
from engines.torch.parallel import SingleProcess
from engines.torch.profiling import NoProfile, StepProfile
from engines.torch.recurrent_memory import RecurrentMemory

log = logging.getLogger(__name__)


class Objective(nn.Module):
    """The task's loss and the auxiliary losses of the network's modules: what is differentiated in each process.

    Args:
        is_compiled: compile the network with ``torch.compile``.
        is_recurrent: pass the memory of the previous batch to the task and return that of this batch.
    """

    def __init__(self, task: Task, network: Backbone, *, is_compiled: bool, is_recurrent: bool) -> None:
        super().__init__()
        self.task = task
        self.network = network
        self._is_recurrent = is_recurrent
        self._called = (torch.compile(network) if is_compiled else network,)  # in a tuple, so no second submodule

    def forward(self, batch: Any, memory: DecodeState | None) -> tuple[Tensor, Tensor | None, DecodeState | None]:
        """Return the task's loss, the auxiliary loss or None, and the memory or None."""
        if self._is_recurrent:
            loss, memory = self.task.recurrent_loss(self._called[0], batch, memory)  # type: ignore[arg-type]
        else:
            loss = self.task.loss(self._called[0], batch)  # type: ignore[arg-type]
        return loss, auxiliary_loss(self.network), memory


class Loop:
    """Train a network. All random numbers of a step depend on (seed, step) alone, so that runs resume bit-exactly.

    Args:
        network: network on the device of the run, trained in place, from the newest checkpoint if there is one.
        order: batches of the whole run.
    """

    optimizer: torch.optim.Adam

    def __init__(self, run: Run, network: Backbone, order: StepBatches, processes: SingleProcess) -> None:
        self.run, self.network, self.order, self.processes = run, network, order, processes
        self.task, self.config = run.cell.task, run.cell.config.trainer
        self.checkpoints = Checkpoints(run.folder)
        initial = copy.deepcopy(network.state_dict()) if checkpoint_files(run.folder) else {}
        self._start()
        if self.checkpoints.restore_newest(self._restore):
            log.info("resuming from step %d", order.start, extra={"run": run.cell.title})
        elif initial:
            network.load_state_dict(initial)
            self._start()
        is_compiled, is_recurrent = self.config.compile, self.config.memory_length > 0
        objective = Objective(self.task, network, is_compiled=is_compiled, is_recurrent=is_recurrent)
        state = optimizer_state(self.optimizer)
        self.objective = processes.prepare_objective(objective)
        self.optimizer = make_optimizer(network, self.config)  # FSDP has replaced the parameters
        load_optimizer_state(self.optimizer, state)
        self.scheduler = make_scheduler(
            self.optimizer, self.config, steps_per_epoch=order.steps_per_epoch, start=order.start
        )
        self._epoch: int | None = None
        self.profile: NoProfile = StepProfile(run, order) if run.cell.config.profile else NoProfile()

    def _start(self) -> None:
        """Create the state of step 0, except the network."""
        order = self.order
        order.start = 0
        self.history = History(
            self.config, steps=order.num_steps, steps_per_epoch=order.steps_per_epoch, processes=self.processes
        )
        self.memory = RecurrentMemory(order.shares.accumulate)
        self.optimizer = make_optimizer(self.network, self.config)
        is_scaled = self.config.precision == "16-mixed" and self.run.device.type == "cuda"
        self.scaler = torch.amp.GradScaler(self.run.device.type, enabled=is_scaled)

    def _restore(self, saved: Mapping[str, Any]) -> None:
        """Restore a checkpoint; any error, and a state that has changed in part, if it is not of this run."""
        self._start()
        self.network.load_state_dict(saved["network"])
        self.history.load_state_dict(saved["history"])
        self.memory.load_state_dict(saved.get("memories"), self.run.device)
        load_optimizer_state(self.optimizer, saved["optimizer"])
        if saved["scaler"]:
            self.scaler.load_state_dict(saved["scaler"])
        if type(saved["step"]) is not int or not 0 <= saved["step"] <= self.order.num_steps:
            raise ValueError(f"step {saved['step']!r:.40}")
        self.order.start = saved["step"]

    def train(self, batches: Iterable[Any], loggers: Loggers) -> int:
        """Run the remaining steps and return the number of the last one.

        Args:
            batches: the remaining micro-batches of this process.
            loggers: where the entries of the history are written.
        """
        step = self.order.start
        self.network.train()
        remaining = iter(batches)
        for index in self._progress():
            if self.history.ends_training:
                break
            with self.profile.step(index):
                self._make_step(index, remaining)
            step = index + 1
            self._finish_step(step, loggers)
            if self.run.observer is not None and step == self.run.observer.num_steps:
                break
        return step

    def _progress(self) -> Iterable[int]:
        if not self.run.processes.is_first:
            return range(self.order.start, self.order.num_steps)
        return with_progress(self.run.cell.title, self.order.start, self.order.num_steps)

    def _make_step(self, step: int, batches: Iterator[Any]) -> None:
        """Run forward and backward of the micro-batches, then one update."""
        accumulate = self.order.shares.accumulate
        if step % self.order.steps_per_epoch == 0:
            self.memory.reset()
        losses = []
        for piece in range(accumulate):
            with self.profile.part("batch"):
                batch = on_device(next(batches), self.run.device)
            self._start_micro_batch(step, self.order.number(step * accumulate + piece))
            with self.processes.micro_batch(self.objective, is_last=piece == accumulate - 1):
                with self.profile.part("forward"), self.config.autocast(self.run.device):
                    loss, auxiliary, self.memory[piece] = self.objective(batch, self.memory[piece])
                with self.profile.part("backward"):
                    total = (loss if auxiliary is None else loss + auxiliary) / accumulate
                    self.scaler.scale(total).backward()
            self.history.add_losses(loss, auxiliary, step + 1, accumulate)
            losses.append(loss.detach())
        with self.profile.part("optimizer"):
            self._update(step, losses)

    def _start_micro_batch(self, step: int, number: int) -> None:
        """Announce a new epoch to the task, and seed the micro-batch."""
        epoch = step // self.order.steps_per_epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self.task.begin_epoch(self.network, epoch)
        torch.manual_seed(mix_seed(self.order.seed, number))

    def _update(self, step: int, losses: list[Tensor]) -> None:
        """Update weights and statistics from the gradients of the whole step."""
        self.scaler.unscale_(self.optimizer)
        if self.run.observer is not None:
            self.run.observer.on_gradients(step + 1, torch.stack(losses).mean())
        if self.config.max_grad_norm:
            nn.utils.clip_grad_norm_(parameters_of(self.optimizer), self.config.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        after_optimizer_step(self.network)
        self.optimizer.zero_grad()

    def _finish_step(self, step: int, loggers: Loggers) -> None:
        """Validate, save and stop, in this order, so that a resumed run passes through the same states."""
        self.history.check_losses(step)
        if self.history.is_due(step):
            entry = self.history.add(step, self._validate)
            if self.history.best_step == step and self.config.checkpoint_selection == "best":
                self._save_weights(self.checkpoints.best(step))
            loggers.write(entry)
        if self.config.checkpoint_selection == "average" and step in averaged_steps(self.config, self.order.num_steps):
            self._save_weights(self.checkpoints.averaged(step))
        stop = self._stop_signal(step)
        is_last = step == self.order.num_steps or self.history.ends_training
        if step % self.config.checkpoint_every == 0 or is_last or stop:
            self._save(step)
        if stop:
            raise Preempted(stop)

    def _stop_signal(self, step: int) -> int:
        """Return the signal that requests a stop, or 0. Several processes exchange it every tenth step."""
        received = self.run.signals.received or 0
        if self.run.processes.count == 1:
            return received
        return int(self.processes.max(received)) if step % 10 == 0 else 0

    def _validate(self) -> float:
        self.network.eval()
        with torch.no_grad(), self.config.autocast(self.run.device):
            score = self.task.validate(self.network, DeviceBatches(self.run.device))
        self.network.train()
        return score

    def _save_weights(self, path: Path) -> None:
        weights = self.processes.state_dict(self.network)
        if self.run.processes.is_first:
            atomic_save(weights, path)

    def _save(self, step: int) -> None:
        state = {
            "step": step,
            "network": self.processes.state_dict(self.network),
            "optimizer": optimizer_state(self.optimizer),
            "scaler": self.scaler.state_dict(),
            "history": self.history.state_dict(),
            "memories": self.memory.state_dict(),
        }
        if self.run.processes.is_first:
            self.checkpoints.save(state, step=step, best_step=self.history.best_step)
