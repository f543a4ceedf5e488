"""Consecutive blocks of books, with a recurrent memory of earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cab import Backbone
from cab.attention import DecodeState
from cab.backbone_protocols import RecurrentLM
from tasks.corpus.losses import token_losses
from tasks.corpus.tokens import END, PAD, Corpus


class Segment(NamedTuple):
    """The next block of each sequence.

    Attributes:
        tokens: [B, 1 + length], the preceding token (END before a book) and the block, filled with PAD.
        begins: [B] bool, True if the block starts a book; otherwise it continues the previous block.
    """

    tokens: Tensor
    begins: Tensor


class BookChunks(Dataset[Segment]):
    """Blocks of ``length`` tokens that end with their book: item i + 1 continues item i, or starts a book."""

    def __init__(self, corpus: Corpus, split: str, length: int, *, limit: int | None = None) -> None:
        self.corpus, self.split, self.length = corpus, split, length
        num_tokens = min(len(corpus.files[split]), limit or len(corpus.files[split]))
        ends = np.unique(np.minimum(corpus.ends[split], num_tokens))
        begins = np.concatenate([[0], ends[:-1]])
        self.counts = -(-(ends - begins) // length)  # blocks per book
        self.firsts = np.cumsum(self.counts) - self.counts  # index of the first block per book
        number = np.arange(self.counts.sum()) - np.repeat(self.firsts, self.counts)
        self._starts = np.repeat(begins, self.counts) + number * length
        self._stops = np.minimum(self._starts + length, np.repeat(ends, self.counts))
        self._begins = number == 0

    def __len__(self) -> int:
        return len(self._starts)

    def __getitems__(self, indices: list[int]) -> Segment:
        tokens = np.full((len(indices), 1 + self.length), PAD, dtype=np.int64)
        for row, index in zip(tokens, indices, strict=True):
            start, stop = int(self._starts[index]), int(self._stops[index])
            row[0] = END if self._begins[index] else self.corpus.read(self.split, start - 1, start)[0]
            row[1 : 1 + stop - start] = self.corpus.read(self.split, start, stop)
        return Segment(torch.from_numpy(tokens), torch.from_numpy(self._begins[indices]))


class BatchedBooks(Dataset[list[Segment]]):
    """Books in groups of ``rows``, which are read at once: their first blocks, their second blocks, ...

    The longest books come first. When a book ends, the last row is dropped.
    """

    def __init__(self, blocks: BookChunks, rows: int) -> None:
        self.blocks = blocks
        by_length = np.argsort(-blocks.counts, kind="stable")
        self._groups = [by_length[start : start + rows] for start in range(0, len(by_length), rows)]

    def __len__(self) -> int:
        return len(self._groups)

    def __getitems__(self, indices: list[int]) -> list[Segment]:
        [index] = indices
        group, counts = self._groups[index], self.blocks.counts
        numbers = range(counts[group[0]])
        return [self.blocks.__getitems__((self.blocks.firsts[group[counts[group] > k]] + k).tolist()) for k in numbers]


def segment_losses(
    backbone: Backbone, vocab_size: int, segment: Segment, mems: DecodeState | None, remembered: int
) -> tuple[Tensor, DecodeState]:
    """Return the loss [B, N] of each token of a block after ``mems`` or nothing, and the new memory."""
    tokens, begins = segment
    network = cast(RecurrentLM, backbone)
    mems = network.init_mems(len(tokens), remembered) if mems is None else network.reset_mems(mems, begins)
    targets = tokens[:, 1:]
    return token_losses(backbone, vocab_size, targets, tokens[:, :-1], targets == PAD, mems=mems)


def read_books(
    backbone: Backbone, vocab_size: int, segments: Sequence[Segment], remembered: int
) -> list[tuple[Tensor, Tensor]]:
    """Return the tokens [n] and losses [n] of each book of a group, in whole blocks."""
    mems: DecodeState | None = None
    books: list[list[Any]] = [[] for _ in segments[0].begins]
    for segment in segments:
        if mems is not None:
            mems = {name: x[: len(segment.tokens)] for name, x in mems.items()}
        losses, mems = segment_losses(backbone, vocab_size, segment, mems, remembered)
        for book, *block in zip(books, segment.tokens[:, 1:], losses, strict=False):  # without books that have ended
            book.append(block)
    return [tuple(map(torch.cat, zip(*book, strict=True))) for book in books]  # type: ignore[misc]
