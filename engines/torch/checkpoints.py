"""Weights and checkpoints in the folder of a run, written by its first process."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cab.config.trainer_config import TrainerConfig
from cab.errors import UserError
from cab.runner.folder import save_whole

log = logging.getLogger(__name__)


class Checkpoints:
    """``step-N.ckpt`` to go on from, ``best-N.pt`` and ``average-N.pt`` to evaluate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._best_of_last = 0

    def best(self, step: int) -> Path:
        return self.folder / f"best-{step:08d}.pt"

    def averaged(self, step: int) -> Path:
        return self.folder / f"average-{step:08d}.pt"

    def newest(self) -> dict[str, Any] | None:
        """The newest checkpoint that can be read; broken ones are reported and passed over."""
        for path in reversed(checkpoint_files(self.folder)):
            try:
                state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            except Exception as error:  # whatever is wrong with it, the one before may be whole
                log.warning("skipped the broken checkpoint %s (%s)", path, type(error).__name__)
                continue
            self._best_of_last = state["history"]["best"][1]
            return state
        return None

    def save(self, state: Mapping[str, Any], *, step: int, best_step: int) -> None:
        """Write the checkpoint whole or not at all; keep it and the one before, and the best weights of both."""
        save_whole(state, self.folder / f"step-{step:08d}.ckpt")
        for old in checkpoint_files(self.folder)[:-2]:
            old.unlink()
        for old in set(self.folder.glob("best-*.pt")) - {self.best(best_step), self.best(self._best_of_last)}:
            old.unlink()
        self._best_of_last = best_step

    def kept_weights(self, config: TrainerConfig, *, steps: int, best_step: int) -> Mapping[str, Tensor] | None:
        """The weights to evaluate, read from disk; None for those of the last step."""
        if config.checkpoint_selection == "best" and best_step:
            return load_weights(self.best(best_step))
        if config.checkpoint_selection == "average" and steps:
            return average_weights([self.averaged(step) for step in averaged_steps(config, steps)])
        return None


def checkpoint_files(folder: Path) -> list[Path]:
    """Checkpoints to go on from, oldest first."""
    return sorted(folder.glob("step-*.ckpt"))


def averaged_steps(config: TrainerConfig, steps: int) -> list[int]:
    """The steps whose weights are averaged: the last ``average_count`` multiples of ``average_every``."""
    chosen = list(range(config.average_every, steps + 1, config.average_every))[-config.average_count :]
    if not chosen:
        raise UserError(f"no step of {steps} is a multiple of trainer.average_every {config.average_every}")
    return chosen


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of state dicts; what is not a floating-point number is the last one's."""
    mean: dict[str, Tensor] = {}
    for path in paths:
        for name, value in load_weights(path).items():
            if name in mean and value.is_floating_point():
                mean[name] += value.double() / len(paths)
            else:
                mean[name] = value.double() / len(paths) if value.is_floating_point() else value
    return mean


def load_weights(path: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights
