"""The base class of every task: data, loss, metrics, and how a trained backbone is evaluated.

A task knows nothing of the training loop, and the loop (`cab.runner`) knows no task by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Tensor
from torch.utils.data import Dataset

from cab.attention import DecodeState
from cab.backbone import Backbone
from cab.backbone_protocols import missing_call
from cab.errors import UnsupportedError
from cab.metric import Metric


class Batches(Protocol):
    """Gives the batches of a data set, in order and whole, on the device of the run."""

    def __call__(self, dataset: Dataset[Any], batch_size: int) -> Iterator[Any]: ...


class Task(ABC):
    """Subclasses take keyword options; ``dataset`` is filled by the harness, all else is the user's to set.

    Class attributes:

    * ``version``: raised whenever the protocol changes; results of different versions are never mixed.
    * ``required_protocols``: protocols of :mod:`cab.backbone_protocols`; a backbone must take the calls of one of them.
    * ``recurrent``: the protocol of backbones that remember, for ``trainer.memory_length``; None for a task whose
      examples do not follow each other. Its training set is then read in rows: item i + 1 goes on where item i ended.
    * ``packages``: modules it imports that are no requirement of the harness, with the extra that brings each.
    """

    version: ClassVar[int] = 1
    required_protocols: ClassVar[tuple[type, ...]] = ()
    recurrent: ClassVar[type | None] = None
    packages: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def protocol_of(cls, backbone: type) -> type:
        """The first of ``required_protocols`` that the backbone takes; UnsupportedError says what none of them finds in
        it.
        """
        missing = {protocol: missing_call(backbone, protocol) for protocol in cls.required_protocols}
        for protocol, call in missing.items():
            if not call:
                return protocol
        reasons = " and ".join(f"{call}, as a {protocol.__name__} does" for protocol, call in missing.items())
        raise UnsupportedError(
            f"task {cls.__name__} cannot use backbone {backbone.__name__}: it does not take {reasons}"
        )

    @property
    def config_variant(self) -> str:
        """What tells apart runs of the same data set, empty when nothing does."""
        return ""

    @property
    @abstractmethod
    def metrics(self) -> tuple[Metric, ...]:
        """What :meth:`evaluate` reports, declared without values."""

    @abstractmethod
    def check(self) -> None:
        """UserError for options that contradict each other; called before any data is read."""

    def bind_config(self, cell: Mapping[str, Any]) -> None:  # noqa: B027
        """Called after :meth:`check` with the whole configuration of the cell; UserError where the two do not fit."""

    @property
    def initial_weights_id(self) -> Mapping[str, Any]:
        """What identifies the weights that training starts from, a part of the cell; empty where they are drawn."""
        return {}

    @abstractmethod
    def setup(self, data_root: Path | None) -> None:
        """Read and check the data.

        Raises:
            ValueError: naming the file and what is wrong in it.
        """

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """What identifies the data that was read: file names, sizes, checksums."""

    @abstractmethod
    def backbone_options(self, backbone: str) -> dict[str, Any]:
        """The options of ``backbone`` that the data decide, as the number of channels."""

    def load_initial_weights(self, backbone: Backbone) -> None:  # noqa: B027
        """Called with a new network before it learns: a task that goes on from other weights puts them in.

        A network on the device ``meta`` is a trial of whether they fit.
        """

    @property
    @abstractmethod
    def training_set(self) -> Dataset[Any]:
        """Examples to train on; ``__getitems__`` gives a batch at once, and may draw torch's random numbers."""

    @abstractmethod
    def loss(self, backbone: Backbone, batch: Any) -> Tensor:
        """The training loss of a batch, a scalar."""

    def recurrent_loss(self, backbone: Backbone, batch: Any, past: DecodeState | None) -> tuple[Tensor, DecodeState]:
        """:meth:`loss` of a batch whose rows go on from ``past``, None at the start; and what is remembered then.

        Of a task that names a ``recurrent`` protocol. What is remembered are tensors with the batch first.
        """
        raise NotImplementedError(f"{type(self).__name__} has no recurrent_loss()")

    def begin_epoch(self, backbone: Backbone, epoch: int) -> None:  # noqa: B027
        """Called before the first step of an epoch, and again when a run is resumed inside it."""

    @abstractmethod
    def validate(self, backbone: Backbone, batches: Batches) -> float:
        """The number that chooses the checkpoint; lower is better."""

    @abstractmethod
    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        """The metrics on the test part, by name; called under the autocast of ``trainer.precision``."""

    def baselines(self) -> dict[str, dict[str, float]]:
        """The same metrics of trivial answers, by the baseline's name."""
        return {}

    def save_plots(self, backbone: Backbone, batches: Batches, folder: Path) -> None:  # noqa: B027
        """Leave pictures in ``folder`` of what a person would want to look at."""
