"""The earlier run that a run starts from (``task.pretrained``)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cab.backbone import Backbone
from cab.errors import UserError
from cab.records.identity import Origin
from cab.records.record import Record, Status, weights_path
from cab.records.results import whole_records
from cab.records.verified import code_of
from cab.registry.registries import ATTENTIONS
from cab.runner.folder import load_weights

log = logging.getLogger(__name__)

LEARNING = ("name", "dropout", "attention_dropout", "checkpoint_activations", "init_std")
NOT_COMPARED = (*LEARNING, "vocab_size", "max_length")
"""Options of a backbone that can differ between the two trainings: of the learning, or from the data."""


@dataclass(frozen=True)
class Pretrained:
    """A finished run with the file of its evaluated weights."""

    path: Path
    record: Record

    @classmethod
    def find(cls, location: str, cell: Mapping[str, Any], *, task: str) -> Pretrained:
        """Find the run that a cell can start from.

        Args:
            location: a record; or a folder of records, where the run must have the cell's attention, pattern, seed and
                network.
            task: task of the run.

        Raises:
            UserError: there is no such run or more than one, its network is different, or its weights are missing.
        """
        path = Path(location).expanduser()
        if not path.exists():
            raise UserError(
                f"task.pretrained: {path} does not exist; name the record of a run of {task}, or a folder of records"
            )
        runs = [cls(path, Record.read(path))] if path.is_file() else _runs_in(path, cell, task)
        problems = [run._mismatch(cell, task) for run in runs]
        matching = [run for run, problem in zip(runs, problems, strict=True) if not problem]
        if not matching:
            raise UserError(f"task.pretrained: {runs[0].path} {problems[0]}")
        if len(matching) > 1:
            names = ", ".join(run.path.name for run in matching)
            raise UserError(
                f"task.pretrained: {path} has more than one run of {_chosen(cell, task)}: name one of {names}"
            )
        return matching[0]._with_weights()

    @property
    def weights(self) -> Path:
        """File of the weights."""
        return weights_path(self.path.parent, self.record.hash)

    def load(self, backbone: Backbone) -> None:
        """Load the weights into a new network; on the device ``meta``, only check whether they match."""
        device = next(backbone.parameters()).device
        try:
            backbone.take_pretrained(load_weights(self.weights, device))  # type: ignore[operator]
        except UserError as error:
            raise UserError(f"the weights of {self.path} do not match the network: {error}") from None

    def _with_weights(self) -> Pretrained:
        if not self.weights.is_file():
            raise UserError(
                f"task.pretrained: {self.path} has no weights at {self.weights}; run it again with force=true"
            )
        code = code_of(ATTENTIONS.get(self.record.config["attention"]["name"]).cls)
        for change in Origin(self.record.attention_code).changes(Origin(code)).values():
            log.warning("task.pretrained: %s: %s", self.path, change)
        return self

    def _mismatch(self, cell: Mapping[str, Any], task: str) -> str:
        """Return why the cell cannot start from this run; empty if it can."""
        record = self.record
        if record.cell["task"] != task or record.status is not Status.FINISHED:
            return f"is a run of task {record.cell['task']} with status {record.status}; name a finished run of {task}"
        if record.cell["pattern"] != cell["pattern"]:
            return f"has pattern {record.cell['pattern']}, not {cell['pattern']}"
        if record.config["attention"]["name"] != cell["attention"]["name"]:
            return f"has attention {record.cell['attention']}, not {cell['attention']['name']}"
        differing = [*_differences("attention", record, cell), *_differences("backbone", record, cell)]
        return f"was trained with other options: add {' '.join(differing)}" if differing else ""


def _chosen(cell: Mapping[str, Any], task: str) -> str:
    return f"task={task} attention={cell['attention']['name']} pattern={cell['pattern']} seed={cell['seed']}"


def _runs_in(folder: Path, cell: Mapping[str, Any], task: str) -> list[Pretrained]:
    """Return the finished runs with the cell's attention, pattern and seed."""
    wanted = (task, cell["attention"]["name"], cell["pattern"], cell["seed"], Status.FINISHED)
    runs = []
    for path, record in whole_records(folder, skipped=[]):
        names = (record.cell["task"], record.config["attention"]["name"])
        if (*names, record.cell["pattern"], record.cell["seed"], record.status) == wanted:
            runs.append(Pretrained(path, record))
    if not runs:
        raise UserError(f"task.pretrained: {folder} has no finished run of {_chosen(cell, task)}")
    return runs


def _differences(group: str, record: Record, cell: Mapping[str, Any]) -> Iterator[str]:
    """Yield the overrides that set the cell's options to those of the record, for options that shape the network."""
    for name, here in cell[group].items():
        value = record.config[group].get(name, here)
        if name not in NOT_COMPARED and value != here:
            yield f"{group}.{name}={'null' if value is None else str(value).replace(' ', '')}"
