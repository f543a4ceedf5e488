"""Pages with their choice of masked tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from tasks.corpus.blocks import PackedLines
from tasks.corpus.tokens import padding_or_none


class Batch(NamedTuple):
    """Pages of which some tokens are masked.

    Attributes:
        tokens: [B, N].
        seen: what the network reads, [B, N].
        places: indices of the tokens to predict in the flattened pages, [K].
        padding: [B, N]; None without padding.
    """

    tokens: Tensor
    seen: Tensor
    places: Tensor
    padding: Tensor | None


class RandomPages(Dataset[Batch]):
    """Pages for training: each reading chooses other tokens.

    Args:
        hide: returns what the network reads of pages [B, N], and the indices to predict, with a random generator or
            with torch's random numbers.
    """

    def __init__(
        self, pages: PackedLines, hide: Callable[[Tensor, torch.Generator | None], tuple[Tensor, Tensor]]
    ) -> None:
        self.pages, self._hide = pages, hide

    def __len__(self) -> int:
        return len(self.pages)

    def __getitems__(self, indices: Sequence[int], generator: torch.Generator | None = None) -> Batch:
        tokens = self.pages.__getitems__(list(indices))
        return Batch(tokens, *self._hide(tokens, generator), padding_or_none(tokens))


class HiddenPages(Dataset[Batch]):
    """Pages that are read in batches of ``batch_size``, with a fixed choice of masked tokens.

    The choices of all batches are drawn one after another, in order, so they depend on ``batch_size``.

    """

    def __init__(self, pages: RandomPages, batch_size: int) -> None:
        self.pages, self.batch_size = pages, batch_size
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
        batch = self.pages.__getitems__(indices, generator)
        self._states[number + 1 :] = [generator.get_state()]
        return batch
