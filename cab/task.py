"""Base class of tasks: data, loss, metrics and evaluation.

A task does not depend on the training loop, and the loop (:mod:`cab.runner`) does not depend on any specific task.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol

from annotated_types import Ge
from torch import Tensor
from torch.utils.data import Dataset

from cab.attention import DecodeState
from cab.backbone import Backbone
from cab.backbone_protocols import missing_call
from cab.errors import UnsupportedError
from cab.metric import Metric


class Batches(Protocol):
    """Access of a task to its data sets in validation and evaluation."""

    def map(self, dataset: Dataset[Any], batch_size: int, score: Callable[[Any], Any]) -> list[Any]:
        """Return ``score(batch)`` for each batch of ``dataset`` in order, the only way to evaluate.

        The processes of a run share the batches, and an interrupted evaluation resumes after the last finished batch.
        So a score depends on its batch alone, and is a plain value that JSON can store: numbers, texts, lists of them,
        mappings. With ``task.limit``, only the first examples are read.
        """

    def first(self, dataset: Dataset[Any], count: int) -> Any:
        """Return a batch of the first ``count`` examples, or of all if there are fewer, for plots."""


@dataclass(kw_only=True, eq=False)
class Task(ABC):
    """Base class of tasks.

    The constructor of a subclass takes ``dataset``, which the benchmark sets, and its options as keyword arguments
    with defaults; a dataclass has ``limit`` as well. Validation, evaluation and plots run under the autocast of
    ``trainer.precision``, as training does; compute scores in float32 or better.

    Args:
        limit: number of examples of each split that validation and evaluation read, for a rehearsal; null: all.

    Attributes:
        version: version of the evaluation protocol. Increase it with every change: results of different versions are
            never mixed.
        required_protocols: protocols of :mod:`cab.backbone_protocols`; a backbone must implement one of them.
        recurrent: whether training carries memories from batch to batch, see :meth:`recurrent_loss`. The training set
            is then read in rows: item i + 1 continues item i.
        packages: imported modules that are not dependencies of the benchmark, with the extra that installs each.
        splits: data sets by name of the split, which :meth:`setup` sets; only ``train`` is read by the benchmark.
        test_split: name of the split that :meth:`evaluate` and :meth:`baselines` read; ``cab evaluate`` changes it.
    """

    version: ClassVar[int] = 1
    required_protocols: ClassVar[tuple[type, ...]] = ()
    recurrent: ClassVar[bool] = False
    packages: ClassVar[Mapping[str, str]] = {}
    splits: Mapping[str, Any] = field(init=False, repr=False)
    test_split: str = field(init=False, repr=False, default="test")

    limit: Annotated[int, Ge(1)] | None = None

    @classmethod
    def protocol_of(cls, backbone: type) -> type:
        """Return the first of ``required_protocols`` that the backbone class implements.

        Raises:
            UnsupportedError: it implements none; the message lists the missing methods.
        """
        missing = {protocol: missing_call(backbone, protocol) for protocol in cls.required_protocols}
        for protocol, call in missing.items():
            if not call:
                return protocol
        reasons = " and ".join(f"{call} of {protocol.__name__}" for protocol, call in missing.items())
        raise UnsupportedError(
            f"task {cls.__name__} does not support backbone {backbone.__name__}: it does not implement {reasons}"
        )

    @property
    def config_variant(self) -> str:
        """Name that distinguishes variants of one data set, such as univariate and multivariate; usually empty."""
        return ""

    @property
    @abstractmethod
    def metrics(self) -> tuple[Metric, ...]:
        """Metrics that :meth:`evaluate` reports, without values."""

    def check(self) -> None:  # noqa: B027
        """Check the options for contradictions; called before any data is read.

        Values that contradict the annotations of the constructor have been refused before.

        Raises:
            UserError: the options contradict each other.
        """

    def bind_config(self, cell: Mapping[str, Any]) -> None:  # noqa: B027
        """Receive the complete configuration of the cell; called after :meth:`check`.

        Raises:
            UserError: the task does not support the configuration.
        """

    @property
    def initial_weights_id(self) -> Mapping[str, Any]:
        """Identification of the weights that training starts from; part of the cell's hash, empty for random ones."""
        return {}

    @property
    def extra_data(self) -> tuple[str, ...]:
        """Names in ``configs/data`` of what :meth:`setup` reads besides the data set, such as a tokenizer."""
        return ()

    @abstractmethod
    def setup(self, data_root: Path | None) -> None:
        """Read and check the data.

        Raises:
            UserError: a file is missing or invalid; the message contains its name and the problem.
        """

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies the data that was read: file names, sizes, checksums."""

    @abstractmethod
    def backbone_options(self, backbone: str) -> dict[str, Any]:
        """Return the options of ``backbone`` that depend on the data, such as the number of channels."""

    def load_initial_weights(self, backbone: Backbone) -> None:  # noqa: B027
        """Load the weights that training starts from, if the task has any; called before training.

        Also called with a network on the device ``meta``, to check whether the weights match.
        """

    @property
    def split_names(self) -> Sequence[str]:
        """Names that ``test_split`` can have; none before :meth:`setup`, or if ``splits`` lacks the default."""
        splits = getattr(self, "splits", {})
        return [*splits] if self.test_split in splits else []

    @property
    def training_set(self) -> Dataset[Any]:
        """Training examples; ``__getitems__`` returns a whole batch, and may use torch's random numbers."""
        return self.splits["train"]

    @abstractmethod
    def loss(self, backbone: Backbone, batch: Any) -> Tensor:
        """Return the training loss of a batch: a mean, or several means [T], whose sum is minimized."""

    def loss_counts(self, backbone: Backbone, batch: Any) -> Tensor | None:  # noqa: ARG002
        """Return the number of values in each mean of :meth:`loss`, in its shape, which weights the mean.

        A step over several micro-batches or processes then has the loss of the whole batch. Called with the batch on
        the CPU and the random numbers of :meth:`loss`. None: the number depends on the number of examples only.
        """
        return None

    def recurrent_loss(self, backbone: Backbone, batch: Any, mems: DecodeState | None) -> tuple[Tensor, DecodeState]:
        """Return :meth:`loss` for a batch whose rows continue the previous batch, and the new memories.

        Required if ``recurrent`` is set. ``mems`` are the memories of the previous batch, tensors with the batch first;
        None at the start.
        """
        raise NotImplementedError(f"{type(self).__name__} has no recurrent_loss()")

    def begin_epoch(self, backbone: Backbone, epoch: int) -> None:  # noqa: B027
        """Prepare an epoch; called before its first step, and again if a run resumes within it."""

    @abstractmethod
    def validate(self, backbone: Backbone, batches: Batches) -> float:
        """Return the validation score that selects the checkpoint; lower is better."""

    @abstractmethod
    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        """Return the metrics on the test split, by name."""

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the metrics of trivial baselines, by the name of the baseline."""
        return {}

    def save_plots(self, backbone: Backbone, batches: Batches, folder: Path) -> None:  # noqa: B027
        """Save plots of example outputs in ``folder``."""
