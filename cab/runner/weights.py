"""Load weights from files that a run, or somebody else, has written; find the earlier run that a run starts from."""

from __future__ import annotations

import logging
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from cab.backbone import Backbone
from cab.errors import UserError, first_line
from cab.records.origin import Origin
from cab.records.record import Record, Status, weights_path
from cab.records.results import whole_records
from cab.records.verified import code_of
from cab.registry.registries import ATTENTIONS
from cab.runner.failures import is_out_of_memory

log = logging.getLogger(__name__)

WHILE_LEARNING = ("name", "dropout", "attention_dropout", "checkpoint_activations", "init_std")
"""Options of a backbone that can differ between the two trainings."""


def load_file(path: Path, device: torch.device | str = "cpu") -> Any:
    """Load the tensors and plain values in a file of ``torch.save``; nothing in it is executed.

    Raises:
        UserError: the file is missing, damaged, or contains other objects.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the unpickler, about files that torch.save did not write
            _check_sums(path)
            return torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; run the cell again with force=true") from None
    except Exception as error:  # torch raises many types, and its messages suggest to disable the protection
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"{path} cannot be loaded ({type(error).__name__}): it is damaged or does not contain weights; "
            "run the cell again with force=true"
        ) from None


def _check_sums(path: Path) -> None:
    """Compare the archive's checksums with its content, which torch does not; older formats have none."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"wrong checksum of {damaged}")


def load_weights(path: Path, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """Load a state dict.

    Raises:
        UserError: as for :func:`load_file`, or the file does not contain tensors by name.
    """
    weights = load_file(path, device)
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise UserError(f"{path} does not contain weights by name; run the cell again with force=true")
    return weights


def load_network(network: nn.Module, path: Path) -> None:
    """Load the weights of a file into a network on the CPU.

    Raises:
        UserError: as for :func:`load_weights`, or the weights do not match the network.
    """
    try:
        network.load_state_dict(load_weights(path))
    except (RuntimeError, AttributeError) as error:
        detail = next((line.strip() for line in str(error).splitlines()[1:] if line.strip()), first_line(error))
        raise UserError(
            f"the weights in {path} do not match the network ({detail}); run the cell again with force=true"
        ) from None


class Startable(Protocol):
    """A network that can be initialized from the weights of another one."""

    def take_pretrained(self, weights: Mapping[str, Tensor]) -> None:
        """Load ``weights``; ValueError with the name of a weight that does not match."""


@dataclass(frozen=True)
class Pretrained:
    """A finished run with the file of its evaluated weights."""

    path: Path
    record: Record

    @classmethod
    def find(cls, place: str, cell: Mapping[str, Any], *, task: str) -> Pretrained:
        """Find the run that a cell can start from.

        Args:
            place: a record; or a folder of records, where the run must have the cell's attention, pattern, seed and
                network.
            cell: configuration of the cell.
            task: task of the run.

        Raises:
            UserError: there is no such run or more than one, its network is different, or its weights are missing.
        """
        path = Path(place).expanduser()
        if not path.exists():
            raise UserError(
                f"task.pretrained: {path} does not exist; name the record of a run of {task}, or a folder of records"
            )
        if not path.is_dir():
            run = cls(path, Record.read(path))
            if problem := run._misfit(cell, task):
                raise UserError(f"task.pretrained: {path} {problem}")
            return run._with_weights()
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
        """File of the weights."""
        return weights_path(self.path.parent, self.record.hash)

    def load(self, backbone: Backbone) -> None:
        """Load the weights into a new network; on the device ``meta``, only check whether they match."""
        device = next(backbone.parameters()).device
        network = cast("Startable", backbone)
        try:
            network.take_pretrained(load_weights(self.weights, device))
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

    def _misfit(self, cell: Mapping[str, Any], task: str) -> str:
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


def _is_chosen(record: Record, cell: Mapping[str, Any], task: str) -> bool:
    same = record.cell["task"] == task and record.status is Status.FINISHED
    same = same and record.cell["pattern"] == cell["pattern"] and record.cell["seed"] == cell["seed"]
    return same and record.config["attention"]["name"] == cell["attention"]["name"]


def _differences(group: str, record: Record, cell: Mapping[str, Any]) -> Iterator[str]:
    """Yield the overrides that set the cell's options to those of the record, for options that shape the network.

    ``vocab_size`` and ``max_length`` are excluded: they depend on the data.
    """
    shaping = [name for name in cell[group] if name not in (*WHILE_LEARNING, "vocab_size", "max_length")]
    for name in shaping:
        value = record.config[group].get(name, cell[group][name])
        if value != cell[group][name]:
            yield f"{group}.{name}={'null' if value is None else str(value).replace(' ', '')}"
