"""Training batches of a run: their order depends on (seed, step) only, so a resumed run sees the same batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from cab.errors import UserError
from cab.files.text_table import counted


class Draw(NamedTuple):
    """A micro-batch: its index in the run, over all processes, and the items of the data set."""

    number: int
    indices: list[int]


@dataclass(frozen=True)
class Shares:
    """Division of the batch of a step into micro-batches, which each process computes one after another.

    The batch of a step does not depend on the number of processes. The random numbers of a micro-batch only depend on
    its size and index. ``batch_size`` counts the items of all processes.
    """

    batch_size: int
    micro_batch_size: int
    rank: int = 0
    num_processes: int = 1

    @classmethod
    def cut(
        cls, *, num_items: int, batch_size: int, micro_batch_size: int | None, rank: int = 0, num_processes: int = 1
    ) -> Shares:
        """Divide a batch of ``batch_size`` items, or of all items if there are fewer."""
        if num_items < batch_size:  # the whole data set in each step, except for a remainder
            batch_size, micro_batch_size = num_items // num_processes * num_processes, None
        if batch_size < 1:
            raise UserError(
                f"{counted(num_items, 'item')} cannot be divided among {num_processes} processes; use fewer"
            )
        per_process, rest = divmod(batch_size, num_processes)
        micro = min(micro_batch_size or per_process, per_process)
        if rest or per_process % micro:
            raise UserError(
                f"trainer.batch_size {batch_size} must be a multiple of {num_processes} processes x "
                f"trainer.micro_batch_size {micro}"
            )
        return cls(batch_size, micro, rank, num_processes)

    @property
    def pieces(self) -> int:
        """Number of micro-batches per step, over all processes."""
        return self.batch_size // self.micro_batch_size

    @property
    def accumulate(self) -> int:
        """Number of micro-batches per step in each process."""
        return self.pieces // self.num_processes


class StepBatches(Sampler[Draw]):
    """Sampler of training batches.

    Batch ``s`` of a run is batch ``s mod k`` of the permutation of epoch ``s div k``, with k batches per epoch. An
    incomplete last batch of an epoch is dropped. Each process gets every ``num_processes``-th micro-batch.

    With ``in_rows`` (Dai et al. 2019), the items are divided into as many contiguous rows as a batch has items, and
    item b of batch s is item ``s mod k`` of row b, so it continues item b of the previous batch. Remaining items are
    dropped. To resume a run, set its first step, ``start``, before iterating.
    """

    def __init__(self, *, num_items: int, shares: Shares, num_steps: int, seed: int, in_rows: bool = False) -> None:
        self.num_items = num_items
        self.shares = shares
        self.num_steps = num_steps
        self.seed = seed
        self.in_rows = in_rows
        self.start = 0

    @property
    def steps_per_epoch(self) -> int:
        return self.num_items // self.shares.batch_size

    def __iter__(self) -> Iterator[Draw]:
        epoch, order, shares = -1, torch.empty(0), self.shares
        for step in range(self.start, self.num_steps):
            if epoch != step // self.steps_per_epoch:
                epoch = step // self.steps_per_epoch
                order = self._order(epoch)
            start = step % self.steps_per_epoch * shares.batch_size
            micro_batches = order[start : start + shares.batch_size].split(shares.micro_batch_size)
            for piece in range(shares.rank, shares.pieces, shares.num_processes):
                yield Draw(step * shares.pieces + piece, micro_batches[piece].tolist())

    def _order(self, epoch: int) -> Tensor:
        """Return the items of an epoch in the order of its batches."""
        if self.in_rows:
            rows, length = self.shares.batch_size, self.steps_per_epoch
            return torch.arange(rows * length).view(rows, length).t().flatten()
        generator = torch.Generator().manual_seed(mix_seed(self.seed, epoch))
        return torch.randperm(self.num_items, generator=generator)


class SeededItems(Dataset[Any]):
    """Numbered micro-batches, whose random augmentations depend on (seed, step) only, in any worker process."""

    def __init__(self, items: Dataset[Any], seed: int) -> None:
        self.items = items
        self.seed = seed

    def __getitems__(self, draw: Draw) -> tuple[int, Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix_seed(~self.seed, draw.number))
            return draw.number, self.items.__getitems__(draw.indices)  # type: ignore[attr-defined]


def training_batches(
    dataset: Dataset[Any], order: StepBatches, *, num_workers: int, device: torch.device
) -> DataLoader[Any]:
    """Return a loader of the remaining micro-batches of this process."""
    return DataLoader(
        SeededItems(dataset, order.seed),
        batch_sampler=order,  # type: ignore[arg-type]  # it yields draws, which SeededItems accepts
        collate_fn=uncollated,
        num_workers=num_workers,
        pin_memory=device.type == "cuda",
    )


def on_device(batch: Any, device: torch.device) -> Any:
    """Move all tensors in a batch of nested mappings, tuples and lists to the device."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: on_device(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        values = [on_device(value, device) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    return batch


def uncollated(batch: Any) -> Any:
    """Return the batch unchanged, since the data sets return whole batches."""
    return batch


def mix_seed(seed: int, step: int) -> int:
    """Return a 63-bit hash of (seed, step), so that neighboring steps have unrelated random numbers."""
    x = (seed * 0x9E3779B97F4A7C15 + step + 1) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (x ^ (x >> 31)) >> 1
