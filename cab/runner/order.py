"""The order of the data: a function of (seed, step) and of nothing else, so a resumed run sees what it would have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, Sampler


class Draw(NamedTuple):
    """The items of one batch, and which batch of the run it is."""

    step: int
    indices: list[int]


class StepBatches(Sampler[Draw]):
    """Batch ``s`` of a run is batch ``s mod k`` of the permutation of epoch ``s div k`` (k batches an epoch).

    The last incomplete batch of an epoch is left out, as in training loops of the field.

    Args:
        num_items: size of the data set.
        batch_size: items a batch; all of them when there are fewer.
        num_batches: batches of the whole run.
        seed: of the permutations.
    """

    def __init__(self, *, num_items: int, batch_size: int, num_batches: int, seed: int) -> None:
        self.num_items = num_items
        self.batch_size = min(batch_size, num_items)
        self.num_batches = num_batches
        self.seed = seed
        self.start = 0
        """The batch to begin with; set before iterating when a run is resumed."""

    @property
    def batches_per_epoch(self) -> int:
        return self.num_items // self.batch_size

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Draw]:
        epoch, order = -1, torch.empty(0)
        for step in range(self.start, self.num_batches):
            wanted, position = divmod(step, self.batches_per_epoch)
            if wanted != epoch:
                epoch = wanted
                generator = torch.Generator().manual_seed(mix_seed(self.seed, epoch))
                order = torch.randperm(self.num_items, generator=generator)
            yield Draw(step, order[position * self.batch_size : (position + 1) * self.batch_size].tolist())


class SeededItems(Dataset[Any]):
    """A data set whose random choices (views, crops, mirrors) follow from (seed, step), in any worker process."""

    def __init__(self, items: Dataset[Any], seed: int) -> None:
        self.items = items
        self.seed = seed

    def __getitems__(self, draw: Draw) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix_seed(~self.seed, draw.step))
            return self.items.__getitems__(draw.indices)  # type: ignore[attr-defined]


def mix_seed(seed: int, step: int) -> int:
    """A seed for each (seed, step), spread over 63 bits so that neighbours share nothing."""
    x = (seed * 0x9E3779B97F4A7C15 + step + 1) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (x ^ (x >> 31)) >> 1
