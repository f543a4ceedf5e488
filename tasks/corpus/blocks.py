"""Training examples from token streams."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cab import UserError
from cab.files.cache import prepared
from cab.files.text_table import counted
from tasks.corpus.tokens import END, PAD, TOKENS_VERSION, Corpus


class Blocks(Dataset[Tensor]):
    """Blocks of ``length`` tokens across lines and books, each with the preceding token (fairseq's break mode none).

    An item is [length + 1]: the preceding token (END before the first), then the block, so every token is predicted
    once.

    Args:
        length: tokens per block.
        whole: drop the incomplete block at the end.
        limit: use only this many tokens of the split.
        overlap: number of tokens at the start of a block that repeat the previous block (fairseq's context window).
    """

    def __init__(
        self,
        corpus: Corpus,
        split: str,
        length: int,
        *,
        whole: bool = False,
        limit: int | None = None,
        overlap: int = 0,
    ) -> None:
        self.corpus, self.split, self.length, self.step = corpus, split, length, length - overlap
        self.num_tokens = min(len(corpus.files[split]), limit or len(corpus.files[split]))
        beyond_first = self.num_tokens - length
        self._count = 1 + (beyond_first // self.step if whole else max(-(-beyond_first // self.step), 0))
        if not self.num_tokens or not self._count:
            raise UserError(
                f"the {split} split has {counted(self.num_tokens, 'token')}, fewer than a block of "
                f"task.block_len {length}"
            )

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.step
        block = self.corpus.read(self.split, start, min(start + self.length, self.num_tokens))
        preceding = self.corpus.read(self.split, start - 1, start) if start else np.array([END])
        return torch.from_numpy(np.concatenate([preceding, block]))

    def __getitems__(self, indices: list[int]) -> Tensor | list[Tensor]:
        items = [self[index] for index in indices]
        return torch.stack(items) if len({len(item) for item in items}) == 1 else items


class Scored(NamedTuple):
    """Blocks [B, N + 1], and the indices of the scored tokens in the flattened tokens [B, N] but the first, [K]."""

    blocks: Tensor
    places: Tensor


class ScoredBlocks(Dataset[Scored]):
    """Whole blocks of which ``is_scored`` marks the tokens to predict."""

    def __init__(self, blocks: Blocks, is_scored: Callable[[Tensor], Tensor]) -> None:
        self.blocks, self._is_scored = blocks, is_scored

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitems__(self, indices: list[int]) -> Scored:
        blocks = torch.stack([self.blocks[index] for index in indices])
        return Scored(blocks, self._is_scored(blocks[:, 1:]).flatten().nonzero().squeeze(1))


class PackedLines(Dataset[Tensor]):
    """Whole lines packed into at most ``length`` tokens and padded (fairseq's break mode complete).

    A longer line is truncated. Batches are [B, length of the longest], filled with PAD.
    """

    def __init__(self, corpus: Corpus, split: str, length: int) -> None:
        self.corpus, self.split, self.length = corpus, split, length
        key = {"corpus": corpus.key, "tokenizer": corpus.tokenizer.to_str(), "version": TOKENS_VERSION}
        key |= {"part": split, "length": length}
        folder = prepared("packed-lines", key, self._pack)
        self.bounds = np.load(folder / "bounds.npy", mmap_mode="r")

    def _pack(self, folder: Path) -> None:
        """Pack greedily, one chunk of the stream at a time, and write the bounds of the packs."""
        file = self.corpus.files[self.split]
        bounds, start, last_end, offset = [0], 0, 0, 0
        for chunk in self.corpus.chunks(self.split):
            for end in (np.flatnonzero(chunk == END) + offset + 1).tolist():
                while end - start > self.length:
                    start = last_end if last_end > start else start + self.length
                    bounds.append(start)
                last_end = end
            offset += len(chunk)
        while len(file) - start > self.length:
            start += self.length
            bounds.append(start)
        if len(file) > start:
            bounds.append(len(file))
        np.save(folder / "bounds.npy", np.array(bounds, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitems__(self, indices: list[int]) -> Tensor:
        items = [self.corpus.read(self.split, int(self.bounds[i]), int(self.bounds[i + 1])) for i in indices]
        batch = np.full((len(items), max(map(len, items))), PAD, dtype=np.int64)
        for row, item in zip(batch, items, strict=True):
            row[: len(item)] = item
        return torch.from_numpy(batch)
