"""The earlier run that a run starts from (``task.pretrained``)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.files.disk import user_path
from cab.records.files import kept_weights, weights_path
from cab.records.identity import changed_modules
from cab.records.record import Record, Status, records_in
from cab.registry.program import is_of_cab, modules_of
from cab.registry.registries import ATTENTIONS
from cab.weights import load_weights

if TYPE_CHECKING:  # commands without a model do not import torch
    from cab.backbone import Backbone

log = logging.getLogger(__name__)

NOT_COMPARED = "name", "dropout", "attention_dropout", "checkpoint_activations", "init_std", "vocab_size", "max_length"
"""Options of a backbone that can differ between the two trainings: of the learning, or from the data."""


@dataclass(frozen=True)
class Pretrained:
    """A finished run with the file of its evaluated weights."""

    path: Path
    record: Record

    @classmethod
    def find(cls, location: str, cell: Mapping[str, Any], *, task: str) -> Pretrained:
        """Find the run of ``task`` that a cell can start from; UserError unless there is one, with its weights.

        ``location`` is a record, or a folder of records, where the run must also have the cell's seed.
        """
        path = user_path(location)
        if not path.exists():
            raise UserError(
                f"task.pretrained: {path} does not exist; name the record of a run of {task}, or a folder of records"
            )
        backbone = cell["backbone"]["name"].removesuffix("_classifier")
        names = {"task": task, "backbone": backbone, "attention": cell["attention"]["name"], "pattern": cell["pattern"]}
        if path.is_file():
            runs = [cls(path, Record.read(path))]
        else:
            runs = [cls(file, record) for file, record in records_in(path, skipped=[])]
            names["seed"] = cell["seed"]
        described = " ".join(f"{name}={value}" for name, value in names.items())
        runs = [run for run in runs if run._is_finished(names)]
        if not runs:
            raise UserError(f"task.pretrained: {path} has no finished run of {described}")
        matching = [run for run in runs if not run._differences(cell)]
        if not matching:
            differences = " ".join(runs[0]._differences(cell))
            raise UserError(f"task.pretrained: {runs[0].path} was trained with other options: add {differences}")
        if len(matching) > 1:
            files = ", ".join(run.path.name for run in matching)
            raise UserError(f"task.pretrained: {path} has more than one run of {described}: name one of {files}")
        return matching[0]._with_weights()

    @property
    def weights(self) -> Path:
        """File of the weights."""
        return weights_path(self.path.parent, self.path.stem)

    def load(self, backbone: Backbone) -> None:
        """Load the weights into a new network; on the device ``meta``, only check whether they match."""
        device = next(backbone.parameters()).device
        try:
            backbone.take_pretrained(load_weights(self.weights, device))  # type: ignore[operator]
        except UserError as error:
            raise UserError(f"the weights of {self.path} do not match the network: {error}") from None

    def _with_weights(self) -> Pretrained:
        """Return the run; UserError unless its weights were kept, and a warning of other code of its attention."""
        kept_weights(self.path)
        modules = modules_of([ATTENTIONS.get(self.record.config["attention"]["name"]).cls])
        attention = {name: digest for name, digest in modules.items() if not is_of_cab(name)}
        if changed := changed_modules(self.record.program.attention, attention, is_complete=True):
            log.warning("task.pretrained: %s has other code of the attention (%s)", self.path, ", ".join(changed))
        return self

    def _is_finished(self, names: Mapping[str, Any]) -> bool:
        """Return whether the run is finished and its cell has these names."""
        cell = {**self.record.cell, "attention": self.record.config["attention"]["name"]}
        return self.record.status is Status.FINISHED and names.items() <= cell.items()

    def _differences(self, cell: Mapping[str, Any]) -> list[str]:
        """Return the overrides that give ``cell`` the network of this run."""
        return [
            f"{group}.{name}={'null' if value is None else str(value).replace(' ', '')}"
            for group in ("attention", "backbone")
            for name, here in cell[group].items()
            if name not in NOT_COMPARED and (value := self.record.config[group].get(name, here)) != here
        ]
