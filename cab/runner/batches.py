"""The batches of a run, on its device.

Those of training come in an order that is a function of (seed, step) and of nothing else, so a resumed run sees what it
would have; those of validation and evaluation in order and whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from cab.errors import UserError


class Draw(NamedTuple):
    """The items of one micro-batch, and which micro-batch of the run it is, over all processes."""

    number: int
    indices: list[int]


@dataclass(frozen=True)
class Shares:
    """How the batch of a step is cut: into ``pieces`` micro-batches, one after the other in each process.

    The batch of a step is the same whatever the number of processes; so is every random number of a micro-batch
    as long as its size is the same.
    """

    batch_size: int
    micro_batch_size: int
    rank: int = 0
    num_processes: int = 1

    @classmethod
    def cut(
        cls, *, num_items: int, batch_size: int, micro_batch_size: int | None, rank: int = 0, num_processes: int = 1
    ) -> Shares:
        """Shares of a batch of ``batch_size`` items, or of all items when there are fewer.

        Raises:
            ValueError: fewer items than processes, or sizes that do not divide the batch.
        """
        if num_items < batch_size:  # the whole data set in each step, as evenly as it goes
            batch_size, micro_batch_size = num_items // num_processes * num_processes, None
        if batch_size < 1:
            raise UserError(f"{num_items} items cannot be shared by {num_processes} processes")
        own, rest = divmod(batch_size, num_processes)
        micro = min(micro_batch_size or own, own)
        if rest or own % micro:
            raise UserError(
                f"trainer.batch_size {batch_size} must be a multiple of {num_processes} processes x "
                f"trainer.micro_batch_size {micro}"
            )
        return cls(batch_size, micro, rank, num_processes)

    @property
    def pieces(self) -> int:
        """Micro-batches of a step, over all processes."""
        return self.batch_size // self.micro_batch_size

    @property
    def accumulate(self) -> int:
        """Micro-batches of a step in each process."""
        return self.pieces // self.num_processes


class StepBatches(Sampler[Draw]):
    """Batch ``s`` of a run is batch ``s mod k`` of the permutation of epoch ``s div k`` (k batches an epoch).

    The last incomplete batch of an epoch is left out, as in training loops of the field. A process draws every
    ``num_processes``-th micro-batch of each batch.

    In rows (Dai et al. 2019) the items are cut into as many equal runs as a batch has rows, and row b of batch s is
    item ``s mod k`` of run b: it follows row b of the batch before. The items that no run has are left out.

    Args:
        num_items: size of the data set.
        shares: how each batch is cut.
        num_steps: batches of the whole run.
        seed: of the permutations.
        in_rows: no permutations.
    """

    def __init__(self, *, num_items: int, shares: Shares, num_steps: int, seed: int, in_rows: bool = False) -> None:
        self.num_items = num_items
        self.shares = shares
        self.num_steps = num_steps
        self.seed = seed
        self.in_rows = in_rows
        self.start = 0
        """The step to begin with; set before iterating when a run is resumed."""

    @property
    def steps_per_epoch(self) -> int:
        return self.num_items // self.shares.batch_size

    def __len__(self) -> int:
        """Micro-batches that are left to this process."""
        return (self.num_steps - self.start) * self.shares.accumulate

    def __iter__(self) -> Iterator[Draw]:
        epoch, order, shares = -1, torch.empty(0), self.shares
        for step in range(self.start, self.num_steps):
            wanted, position = divmod(step, self.steps_per_epoch)
            if wanted != epoch:
                epoch = wanted
                order = self._order(epoch)
            batch = order[position * shares.batch_size : (position + 1) * shares.batch_size]
            for piece in range(shares.rank, shares.pieces, shares.num_processes):
                items = batch[piece * shares.micro_batch_size : (piece + 1) * shares.micro_batch_size]
                yield Draw(step * shares.pieces + piece, items.tolist())

    def _order(self, epoch: int) -> Tensor:
        """The items of an epoch, batch after batch."""
        if self.in_rows:
            rows, length = self.shares.batch_size, self.steps_per_epoch
            return torch.arange(rows * length).view(rows, length).t().flatten()
        generator = torch.Generator().manual_seed(mix_seed(self.seed, epoch))
        return torch.randperm(self.num_items, generator=generator)

    def number(self, index: int) -> int:
        """Which micro-batch of the run, over all processes, this process's micro-batch ``index`` of the run is."""
        return index * self.shares.num_processes + self.shares.rank


class SeededItems(Dataset[Any]):
    """A data set whose random choices (views, crops, mirrors) follow from (seed, step), in any worker process."""

    def __init__(self, items: Dataset[Any], seed: int) -> None:
        self.items = items
        self.seed = seed

    def __getitems__(self, draw: Draw) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix_seed(~self.seed, draw.number))
            return self.items.__getitems__(draw.indices)  # type: ignore[attr-defined]


def training_batches(
    dataset: Dataset[Any], order: StepBatches, *, num_workers: int, device: torch.device
) -> DataLoader[Any]:
    """Every micro-batch that is left to this process."""
    return DataLoader(
        SeededItems(dataset, order.seed),
        batch_sampler=order,  # type: ignore[arg-type]  # it yields draws, which SeededItems takes
        collate_fn=_uncollated,
        num_workers=num_workers,
        pin_memory=device.type == "cuda",
    )


class DeviceBatches:
    """Batches in order, whole, moved to the device: what a task is given to validate and evaluate."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __call__(self, dataset: Dataset[Any], batch_size: int) -> Iterator[Any]:
        pins = self.device.type == "cuda"
        for batch in DataLoader(dataset, batch_size=batch_size, collate_fn=_uncollated, pin_memory=pins):
            yield on_device(batch, self.device)


def on_device(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor in it moved, whatever holds them."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: on_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(on_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(on_device(value, device) for value in batch)
    return batch


def _uncollated(batch: Any) -> Any:
    """The data sets make whole batches themselves."""
    return batch


def mix_seed(seed: int, step: int) -> int:
    """A seed for each (seed, step), spread over 63 bits so that neighbours share nothing."""
    x = (seed * 0x9E3779B97F4A7C15 + step + 1) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (x ^ (x >> 31)) >> 1
