"""The state of a training run with its history, and its checkpoints and weights in the folder of the run."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cab.backbone import Backbone
from cab.config.run_config import TrainerConfig
from cab.errors import UserError, first_line
from cab.files.cache import sha256_of
from cab.files.text_table import counted
from cab.records.identity import Identity, why_not_resumed
from cab.runner.batches import StepBatches
from cab.runner.engine import Run
from cab.runner.folder import atomic_save, load_file, load_weights
from cab.runner.processes import DivergedError, Processes, is_out_of_memory
from engines.torch.optimizer import (
    as_shard,
    is_sharded,
    load_network_state,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
    parameters_of,
)
from engines.torch.parallel import SingleProcess
from engines.torch.recurrent_memory import RecurrentMemory

log = logging.getLogger(__name__)

Entry = dict[str, float | None]
PLAIN_STATE = ("entries", "best_step", "steps_to_solve", "_best", "_stale", "_diverged_at")
"""Attributes of a history that a checkpoint stores as they are."""


class LossMean:
    """The mean loss since the last entry, kept on the device so that no step synchronizes."""

    def __init__(self, total: float = 0.0, steps: float = 0.0, bad_step: int = 0) -> None:
        self._total: Tensor | float = total
        self.steps = steps
        self._bad_step: Tensor | int = bad_step

    def add(self, loss: Tensor, step: int, pieces: int) -> None:
        """Add the loss of one of the ``pieces`` micro-batches of ``step``."""
        self._total = self._total + (loss.detach() / pieces).double()
        self.steps += 1 / pieces
        earlier = self._bad_step
        bad = torch.where(torch.isfinite(loss), earlier if isinstance(earlier, int) else 0, step)
        self._bad_step = bad if isinstance(earlier, int) else torch.where(earlier > 0, earlier, bad)

    def mean(self) -> float:
        """Return the mean over steps, 0 without any."""
        return float(self._total) / max(1, self.steps)

    def bad_step(self) -> int:
        """Return the first step with a NaN or infinite loss, or 0."""
        return int(self._bad_step)

    def state(self, processes: SingleProcess) -> list[float]:
        """Return the constructor's arguments with which all processes together have the same mean."""
        return [processes.mean(float(self._total)), self.steps, int(processes.max(self.bad_step()))]


class History:
    """Entries of ``step``, ``loss`` and ``validation``, and what depends on them; equal in all processes.

    ``loss`` is the task's loss. Entries have ``auxiliary_loss`` if modules of the network added losses.
    """

    def __init__(self, config: TrainerConfig, *, steps: int, steps_per_epoch: int, processes: SingleProcess) -> None:
        self.entries: list[Entry] = []
        self._losses, self._auxiliary = LossMean(), LossMean()
        self.best_step = 0
        self.steps_to_solve: int | None = None
        self.earlier_seconds = 0.0
        self._config = config
        self._total = steps
        every = max(1, steps // 100) if config.validate_every is None else config.validate_every
        self._every = steps_per_epoch if every == "epoch" else int(every)
        self._processes = processes
        self._best = math.inf
        self._stale = 0
        self._diverged_at = 0
        self._started = time.perf_counter()

    def add_losses(self, loss: Tensor, auxiliary: Tensor | None, step: int, pieces: int) -> None:
        """Add the losses of one of the ``pieces`` micro-batches of ``step``."""
        self._losses.add(loss, step, pieces)
        if auxiliary is not None:
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
        if self._auxiliary.steps:
            entry["auxiliary_loss"] = self._processes.mean(self._auxiliary.mean())
        self._losses, self._auxiliary = LossMean(), LossMean()
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
            **{name: getattr(self, name) for name in PLAIN_STATE},
            "loss": self._losses.state(self._processes),
            "auxiliary": self._auxiliary.state(self._processes),
            "seconds": self.earlier_seconds + time.perf_counter() - self._started,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for name in PLAIN_STATE:
            setattr(self, name, state[name])
        self._losses, self._auxiliary = LossMean(*state["loss"]), LossMean(*state["auxiliary"])
        self.earlier_seconds = state["seconds"]


class TrainingState:
    """What a checkpoint stores: the network and everything that changes with the steps."""

    def __init__(self, run: Run, network: Backbone, order: StepBatches, processes: SingleProcess) -> None:
        config = run.cell.config.trainer
        self.step = 0
        self.network = network
        self.optimizer = make_optimizer(network, config)
        is_scaled = run.cell.config.precision_on(run.device).precision == "16-mixed" and run.device.type == "cuda"
        self.scaler = torch.amp.GradScaler(run.device.type, enabled=is_scaled)
        self.history = History(
            config, steps=order.num_steps, steps_per_epoch=order.steps_per_epoch, processes=processes
        )
        self.memory = None
        if run.cell.task.recurrent:
            self.memory = RecurrentMemory(order.shares.accumulate)
        self.interval = LossMean()
        """Of the steps since the last row of the loggers."""
        self._num_steps, self._device, self._run, self._processes = order.num_steps, run.device, run, processes

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs; every process must call this, and has its own shards."""
        return {
            "step": self.step,
            "identity": self._run.identity.to_plain(),
            "network": self.network.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "scaler": self.scaler.state_dict(),
            "history": self.history.state_dict(),
            "interval": self.interval.state(self._processes),
            "memories": self.memory and self.memory.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        A state that does not fit raises any error, and may have been loaded in part.
        """
        if obstacle := why_not_resumed(Identity.from_plain(saved["identity"]), self._run.identity):
            raise ValueError(obstacle)
        weights, moments = saved["network"], saved["optimizer"]
        if parts := saved.get("parts"):
            weights = {**weights, **joined([part["network"] for part in parts], self.network.state_dict())}
            for position, parameter in enumerate(parameters_of(self.optimizer)):
                own = [part["optimizer"].get(position, {}) for part in parts]
                more = joined(own, dict.fromkeys(own[0], parameter))
                moments = {**moments, **({position: {**moments[position], **more}} if more else {})}
        load_network_state(self.network, weights)
        self.history.load_state_dict(saved["history"])
        self.interval = LossMean(*saved["interval"])
        if self.memory is not None:
            self.memory.load_state_dict(saved["memories"], self._device)
        load_optimizer_state(self.optimizer, moments)
        if saved["scaler"]:
            self.scaler.load_state_dict(saved["scaler"])
        if type(saved["step"]) is not int or not 0 <= saved["step"] <= self._num_steps:
            raise ValueError(f"step {saved['step']!r:.40}")
        self.step = saved["step"]


def shard_file(checkpoint: Path, rank: int, count: int) -> Path:
    """Return the file with the shards of one of ``count`` processes."""
    return checkpoint.with_suffix(f".{rank}-of-{count}.shard")


def split(state: Mapping[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return this process's shards in a state of nested mappings, and the rest, which all processes have."""
    nested = {name: split(value) for name, value in state.items() if isinstance(value, Mapping)}
    single = {name: value for name, value in state.items() if name not in nested}
    shards = {name: x.to_local() for name, x in single.items() if is_sharded(x)}
    rest = {name: x for name, x in single.items() if name not in shards}
    return shards | {name: own for name, (own, _) in nested.items()}, rest | {
        name: of for name, (_, of) in nested.items()
    }


def joined(parts: Sequence[Mapping[str, Tensor]], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors from their shards: whole, or sharded as those of the same names if there is this process's only.

    torch shards the first axis, in the order of the processes.
    """
    if len(parts) == 1:
        return {name: as_shard(x, like[name]) for name, x in parts[0].items()}
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class Checkpoints:
    """The files ``step-N.ckpt``, to resume from, and ``best-N.pt`` and ``average-N.pt``, to evaluate.

    The first process of a run writes them. With FSDP, each process has written its shards to
    ``step-N.RANK-of-COUNT.shard`` before; any number of processes can resume from them. A checkpoint has the SHA-256
    of the weights that its run still needs, and is skipped if they are not these.
    (``torch.distributed.checkpoint`` unpickles a file, which could execute code.)
    """

    def __init__(self, folder: Path, own: Processes, processes: SingleProcess) -> None:
        self.folder, self._own, self._processes = folder, own, processes
        self._is_writer = own.is_first
        self._best_of_last = 0
        self._sums: dict[str, str] = {}

    def weights(self, kind: str, step: int) -> Path:
        """Return the file of the weights after ``step``: the ``best``, or part of the ``average``."""
        return self.folder / f"{kind}-{step:08d}.pt"

    def restore_newest(self, restore: Callable[[Mapping[str, Any]], None]) -> bool:
        """Call ``restore`` with the newest checkpoint that it accepts, and return whether there is one.

        Checkpoints that a process cannot read, or that ``restore`` cannot use, are skipped with a warning.
        """
        for path in reversed(checkpoint_files(self.folder)):
            state: Any = None
            reason = "unreadable in another process"
            try:
                state = self._read(path)
            except (UserError, TypeError) as error:
                reason = first_line(error)
            if self._processes.max(float(state is None)):
                log.warning("skipping unreadable checkpoint %s (%s)", path, reason)
                continue
            try:
                assert state is not None
                restore(state)
                self._best_of_last, self._sums = state["history"]["best_step"], state.get("weights", {})
            except Exception as error:  # whatever is wrong with it, the previous one may be intact
                if is_out_of_memory(error):
                    raise
                log.warning("skipping checkpoint %s, which is not of this run (%s)", path, first_line(error))
            else:
                return True
        return False

    def _read(self, path: Path) -> Any:
        """Return the state in a checkpoint with its shards: those of this process, or all of another division."""
        state = load_file(path)
        for name, checksum in state.get("weights", {}).items() if self._is_writer and isinstance(state, dict) else ():
            _check(self.folder / name, checksum)
        count = state.get("shards", 0) if isinstance(state, dict) else 0
        if not count:
            return state
        is_own = self._processes.is_sharded and count == self._own.count
        parts = [load_file(shard_file(path, rank, count)) for rank in ([self._own.rank] if is_own else range(count))]
        if any(part.get(name) != state[name] for part in parts for name in ("step", "identity")):
            raise UserError(f"{path} has a shard of another run")
        return {**state, "parts": parts}

    def save(self, state: Mapping[str, Any], *, step: int, best_step: int) -> None:
        """Write a checkpoint atomically; keep it and the previous one, and the best weights of both."""
        path = self.folder / f"step-{step:08d}.ckpt"
        if self._processes.is_sharded:
            shards, rest = split(state["network"]), split(state["optimizer"])
            own = {"network": shards[0], "optimizer": rest[0], "step": step, "identity": state["identity"]}
            atomic_save(own, shard_file(path, self._own.rank, self._own.count))
            self._processes.max(0.0)  # all have written theirs
            state = {**state, "network": shards[1], "optimizer": rest[1], "shards": self._own.count}
        if not self._is_writer:
            return
        best = self.weights("best", best_step).name
        needed = {name: checksum for name, checksum in self._sums.items() if name == best or name[0] == "a"}
        atomic_save({**state, "weights": needed}, path)
        for old in checkpoint_files(self.folder)[:-2]:
            old.unlink()
        kept_steps = {file.stem for file in checkpoint_files(self.folder)}
        for old in self.folder.glob("step-*.shard"):
            if old.name.partition(".")[0] not in kept_steps:
                old.unlink()
        kept = {self.weights("best", step) for step in (best_step, self._best_of_last)}
        for old in set(self.folder.glob("best-*.pt")) - kept:
            old.unlink()
        self._best_of_last = best_step

    def save_weights(self, weights: Mapping[str, Tensor], path: Path) -> None:
        """Write weights atomically."""
        if self._is_writer:
            atomic_save(weights, path)
            self._sums[path.name] = sha256_of(path)

    def selected_weights(self, config: TrainerConfig, *, steps: int, best_step: int) -> Mapping[str, Tensor] | None:
        """Load the weights to evaluate; return None if they are those of the last step."""
        kind, chosen = config.checkpoint_selection, list[int]()
        if kind == "best" and best_step:
            chosen = [best_step]
        elif kind == "average" and steps:
            chosen = averaged_steps(config, steps)
        paths = [self.weights(kind, step) for step in chosen]
        for path in paths:
            _check(path, self._sums.get(path.name))
        if not paths:
            return None
        return average_weights(paths) if kind == "average" else load_weights(paths[0])


def _check(path: Path, checksum: str | None) -> None:
    """Raise UserError if weights are missing, or not those with the checksum."""
    if not path.is_file() or checksum not in (None, sha256_of(path)):
        raise UserError(f"{path.name} is missing or changed since it was saved; repeat the command to train again")


def checkpoint_files(folder: Path) -> list[Path]:
    """List the checkpoints to resume from, oldest first."""
    return sorted(folder.glob("step-*.ckpt"))


def averaged_steps(config: TrainerConfig, steps: int) -> list[int]:
    """Return the steps whose weights are averaged: the last ``average_count`` multiples of ``average_every``."""
    chosen = list(range(config.average_every, steps + 1, config.average_every))[-config.average_count :]
    if not chosen:
        raise UserError(
            f"trainer.average_every={config.average_every} is more than the {counted(steps, 'step')} of the run; "
            "lower it"
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
