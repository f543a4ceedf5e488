"""The run whose weights another run starts from: which record fits a cell, and its weights in the cell's network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from cab.backbone import Backbone
from cab.errors import UserError
from cab.records.record import Record, Status, weights_path
from cab.records.results import whole_records

WHILE_LEARNING = ("name", "dropout", "attention_dropout", "checkpoint_activations", "init_std")
"""Options of a backbone that may change from one training to the next."""


class Startable(Protocol):
    """A network that takes what there is of it in another's weights."""

    def take_pretrained(self, weights: Mapping[str, Tensor]) -> None:
        """ValueError, naming the weight, where they do not fit."""


@dataclass(frozen=True)
class Pretrained:
    """A finished run, and the file of the weights that it was scored with."""

    path: Path
    record: Record

    @classmethod
    def find(cls, place: str, cell: Mapping[str, Any], *, task: str) -> Pretrained:
        """The run of ``task`` at ``place`` that the cell with the configuration ``cell`` can go on from.

        Args:
            place: its record; or a folder of records, of which the one counts that has the cell's attention, pattern
                and seed and the same network.

        Raises:
            ValueError: there is none or more than one, it was another network, or its weights are not there.
        """
        path = Path(place).expanduser()
        if not path.exists():
            raise UserError(
                f"task.pretrained: there is nothing at {path}; name a run of {task}, or a folder of records"
            )
        if not path.is_dir():
            found = cls(path, Record.read(path))
            if problem := found._misfit(cell, task):
                raise UserError(f"task.pretrained: {path} {problem}")
            return found._with_weights()
        chosen = f"task={task} attention={cell['attention']['name']} pattern={cell['pattern']} seed={cell['seed']}"
        runs = [cls(path, record) for path, record in whole_records(path, skipped=[]) if _is_chosen(record, cell, task)]
        if not runs:
            raise UserError(f"task.pretrained: {path} has no finished run of {chosen}")
        problems = [run._misfit(cell, task) for run in runs]
        fitting = [run for run, problem in zip(runs, problems, strict=True) if not problem]
        if not fitting:
            raise UserError(f"task.pretrained: {runs[0].path} {problems[0]}")
        if len(fitting) > 1:
            names = ", ".join(run.path.name for run in fitting)
            raise UserError(f"task.pretrained: {path} has more than one run of {chosen}: name one of {names}")
        return fitting[0]._with_weights()

    @property
    def weights(self) -> Path:
        return weights_path(self.path.parent, self.record.hash)

    def load(self, backbone: Backbone) -> None:
        """Put the weights into a network that is new; one on the device ``meta`` only tells whether they fit."""
        device = next(backbone.parameters()).device
        network = cast("Startable", backbone)
        try:
            network.take_pretrained(torch.load(self.weights, map_location=device, weights_only=True))
        except UserError as error:
            raise UserError(f"the weights of {self.path} do not fit: {error}") from None

    def _with_weights(self) -> Pretrained:
        if not self.weights.is_file():
            raise UserError(f"task.pretrained: {self.path} has no weights at {self.weights}; run it again, force=true")
        return self

    def _misfit(self, cell: Mapping[str, Any], task: str) -> str:
        """Why the cell cannot go on from it; empty where it can."""
        record = self.record
        if record.cell["task"] != task or record.status is not Status.FINISHED:
            return f"is a run of task {record.cell['task']} that {_FATES[record.status]}, no finished run of {task}"
        if record.cell["pattern"] != cell["pattern"]:
            return f"has pattern {record.cell['pattern']}, not {cell['pattern']}"
        if record.config["attention"]["name"] != cell["attention"]["name"]:
            return f"has attention {record.cell['attention']}, not {cell['attention']['name']}"
        differing = [*_differences("attention", record, cell), *_differences("backbone", record, cell)]
        return f"was trained with other options: add {' '.join(differing)}" if differing else ""


_FATES = {
    Status.FINISHED: "finished",
    Status.OOM: "had no memory",
    Status.DIVERGED: "diverged",
    Status.FAILED: "failed",
}


def _is_chosen(record: Record, cell: Mapping[str, Any], task: str) -> bool:
    same = record.cell["task"] == task and record.status is Status.FINISHED
    same = same and record.cell["pattern"] == cell["pattern"] and record.cell["seed"] == cell["seed"]
    return same and record.config["attention"]["name"] == cell["attention"]["name"]


def _differences(group: str, record: Record, cell: Mapping[str, Any]) -> Iterator[str]:
    """Overrides that would make the cell's options the record's, of those that both have and that shape a network.

    The data decide on ``vocab_size`` and ``max_length`` of a backbone of tokens.
    """
    shaping = [name for name in cell[group] if name not in (*WHILE_LEARNING, "vocab_size", "max_length")]
    for name in shaping:
        given = record.config[group].get(name, cell[group][name])
        if given != cell[group][name]:
            yield f"{group}.{name}={'null' if given is None else str(given).replace(' ', '')}"
