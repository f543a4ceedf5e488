"""The state of a training run, and its checkpoints and weights in the folder of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cab.backbone import Backbone
from cab.config.run_config import TrainerConfig
from cab.errors import UserError, first_line
from cab.records.identity import Origin
from cab.runner.batches import StepBatches
from cab.runner.engine import Run
from cab.runner.failures import is_out_of_memory
from cab.runner.folder import atomic_save, load_file, load_weights
from engines.torch.history import History
from engines.torch.optimizer import (
    load_network_state,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
    whole_state_dict,
)

if TYPE_CHECKING:
    from engines.torch.loop import SingleProcess

log = logging.getLogger(__name__)


class TrainingState:
    """What a checkpoint stores: the network and everything that changes with the steps."""

    def __init__(self, run: Run, network: Backbone, order: StepBatches, processes: SingleProcess) -> None:
        config = run.cell.config.trainer
        self.step = 0
        self.network = network
        self.optimizer = make_optimizer(network, config)
        is_scaled = config.precision == "16-mixed" and run.device.type == "cuda"
        self.scaler = torch.amp.GradScaler(run.device.type, enabled=is_scaled)
        self.history = History(
            config, steps=order.num_steps, steps_per_epoch=order.steps_per_epoch, processes=processes
        )
        self.memory = None
        if config.memory_length:
            from engines.torch.recurrent_memory import RecurrentMemory

            self.memory = RecurrentMemory(order.shares.accumulate)
        self._num_steps, self._device, self._origin = order.num_steps, run.device, run.origin

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs; every process must call this."""
        return {
            "step": self.step,
            "origin": vars(self._origin),
            "network": whole_state_dict(self.network),
            "optimizer": optimizer_state(self.optimizer),
            "scaler": self.scaler.state_dict(),
            "history": self.history.state_dict(),
            "memories": self.memory and self.memory.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        A state that does not fit raises any error, and may have been loaded in part.
        """
        if other := Origin(**saved.get("origin", {})).changes(self._origin).other_run:
            raise ValueError(other)
        load_network_state(self.network, saved["network"])
        self.history.load_state_dict(saved["history"])
        if self.memory is not None:
            self.memory.load_state_dict(saved["memories"], self._device)
        load_optimizer_state(self.optimizer, saved["optimizer"])
        if saved["scaler"]:
            self.scaler.load_state_dict(saved["scaler"])
        if type(saved["step"]) is not int or not 0 <= saved["step"] <= self._num_steps:
            raise ValueError(f"step {saved['step']!r:.40}")
        self.step = saved["step"]


class Checkpoints:
    """The files ``step-N.ckpt``, to resume from, and ``best-N.pt`` and ``average-N.pt``, to evaluate.

    Args:
        folder: folder of the run.
        is_writer: whether this process writes the files, as the first of a run does.
    """

    def __init__(self, folder: Path, *, is_writer: bool = True) -> None:
        self.folder, self._is_writer = folder, is_writer
        self._best_of_last = 0

    def best(self, step: int) -> Path:
        """Return the file of the best weights, from the validation after ``step``."""
        return self.folder / f"best-{step:08d}.pt"

    def averaged(self, step: int) -> Path:
        """Return the file of the weights after ``step`` that enter the average."""
        return self.folder / f"average-{step:08d}.pt"

    def restore_newest(self, restore: Callable[[Mapping[str, Any]], None]) -> bool:
        """Call ``restore`` with the newest checkpoint that it accepts, and return whether there is one.

        Checkpoints that cannot be read, or that ``restore`` cannot use, are skipped with a warning.
        """
        for path in reversed(checkpoint_files(self.folder)):
            try:
                state = load_file(path)
                restore(state)
                self._best_of_last = state["history"]["best"][1]
            except UserError:
                log.warning("skipping unreadable checkpoint %s", path)
            except Exception as error:  # whatever is wrong with it, the previous one may be intact
                if is_out_of_memory(error):
                    raise
                log.warning("skipping checkpoint %s, which is not of this run (%s)", path, first_line(error))
            else:
                return True
        return False

    def save(self, state: Mapping[str, Any], *, step: int, best_step: int) -> None:
        """Write a checkpoint atomically; keep it and the previous one, and the best weights of both."""
        if not self._is_writer:
            return
        atomic_save(state, self.folder / f"step-{step:08d}.ckpt")
        for old in checkpoint_files(self.folder)[:-2]:
            old.unlink()
        for old in set(self.folder.glob("best-*.pt")) - {self.best(best_step), self.best(self._best_of_last)}:
            old.unlink()
        self._best_of_last = best_step

    def save_weights(self, weights: Mapping[str, Tensor], path: Path) -> None:
        """Write weights atomically."""
        if self._is_writer:
            atomic_save(weights, path)

    def selected_weights(self, config: TrainerConfig, *, steps: int, best_step: int) -> Mapping[str, Tensor] | None:
        """Load the weights to evaluate; return None if they are those of the last step."""
        if config.checkpoint_selection == "best" and best_step:
            return load_weights(self.best(best_step))
        if config.checkpoint_selection == "average" and steps:
            return average_weights([self.averaged(step) for step in averaged_steps(config, steps)])
        return None


def checkpoint_files(folder: Path) -> list[Path]:
    """List the checkpoints to resume from, oldest first."""
    return sorted(folder.glob("step-*.ckpt"))


def averaged_steps(config: TrainerConfig, steps: int) -> list[int]:
    """Return the steps whose weights are averaged: the last ``average_count`` multiples of ``average_every``."""
    chosen = list(range(config.average_every, steps + 1, config.average_every))[-config.average_count :]
    if not chosen:
        raise UserError(
            f"trainer.average_every={config.average_every} is more than the {steps} steps of the run; lower it"
        )
    return chosen


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of state dicts; entries that are not floating point come from the last one."""
    mean: dict[str, Tensor] = {}
    for path in paths:
        for name, value in load_weights(path).items():
            if name in mean and value.is_floating_point():
                mean[name] += value.double() / len(paths)
            else:
                mean[name] = value.double() / len(paths) if value.is_floating_point() else value
    return mean
