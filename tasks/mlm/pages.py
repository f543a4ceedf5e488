"""Pages of an evaluation with their choice of masked tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from tasks.corpus.blocks import PackedLines


class HiddenPages(Dataset["HiddenPages.Batch"]):
    """Pages that are read in batches of ``batch_size``, with a fixed choice of masked tokens.

    The choices of all batches are drawn one after another, in order, so they depend on ``batch_size``.

    Args:
        hide: returns what the network reads of pages [B, N], and the indices to predict, with a random generator.
    """

    class Batch(NamedTuple):
        """``tokens`` [B, N], ``seen`` [B, N] by the network, and the indices to predict [K] in the flattened pages."""

        tokens: Tensor
        seen: Tensor
        places: Tensor

    def __init__(
        self, pages: PackedLines, batch_size: int, hide: Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]
    ) -> None:
        self.pages, self.batch_size, self._hide = pages, batch_size, hide
        self._states = [torch.Generator().manual_seed(0).get_state()]

    def __len__(self) -> int:
        return len(self.pages)

    def __getitems__(self, indices: list[int]) -> Batch:
        number = indices[0] // self.batch_size
        while len(self._states) <= number:
            start = (len(self._states) - 1) * self.batch_size
            self._read(range(start, start + self.batch_size))
        return self._read(indices)

    def _read(self, indices: Sequence[int]) -> Batch:
        """Return a batch, and keep the state of the generator after it."""
        number = indices[0] // self.batch_size
        generator = torch.Generator()
        generator.set_state(self._states[number])
        tokens = self.pages.__getitems__(list(indices))
        batch = self.Batch(tokens, *self._hide(tokens, generator))
        self._states[number + 1 :] = [generator.get_state()]
        return batch
