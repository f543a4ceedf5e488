"""LM with segment-level recurrence (Dai et al. 2019): each layer also reads its inputs at earlier tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cab import Backbone, UserError, register_task
from cab.attention import DecodeState
from cab.backbone_protocols import RecurrentLM
from cab.metric import mean_over_batches
from cab.registry.options import Positive
from cab.task import Batches
from tasks.corpus.facts import Answers, Facts
from tasks.corpus.losses import sum_of, token_losses
from tasks.corpus.tokens import END, PAD, Corpus
from tasks.lm.task import LM
from tasks.means import masked_mean


@register_task(
    "lm_recurrent",
    paper="Dai et al. 2019",
    datasets="pg19 wikitext103 wikitext2 synthetic",
    backbones={"gpt2": "CS"},
    in_index=False,
    options_from_task="lm",
)
@dataclass(kw_only=True, eq=False)
class RecurrentLMTask(LM):
    """Predict each token of a book from the block before it and a memory of earlier blocks.

    Blocks are consecutive in training and evaluation. Each book starts with an empty memory. ``context_lengths`` are
    the tokens of a block and of its memory together: those beyond ``block_len`` are remembered.

    Args: as for ``lm``, and
        memory_length: earlier tokens that each layer remembers.
    """

    recurrent: ClassVar[bool] = True
    required_protocols: ClassVar = (RecurrentLM,)
    repeat_metrics: ClassVar = ()

    memory_length: Positive = 150

    def check(self) -> None:
        super().check()
        if self.overlap:
            raise UserError(f"task.overlap={self.overlap} duplicates the context of the memory; set task.overlap=0")

    @property
    def config_variant(self) -> str:
        return f"{super().config_variant} memory {self.memory_length}".strip()

    @property
    def context(self) -> int:
        """Number of tokens of a training block and its memory."""
        return self.block_len + self.memory_length

    def load_initial_weights(self, backbone: Backbone) -> None:
        cast(RecurrentLM, backbone).init_mems(1, self.memory_length)  # an error without recurrent memory

    def setup(self, data_root: Path | None) -> None:
        super().setup(data_root)
        self.splits = {"train": BookChunks(self.corpus, "train", self.block_len)}

    @property
    def training_set(self) -> Dataset[Any]:
        return self.splits["train"]

    def loss(self, backbone: Backbone, batch: Segment) -> Tensor:
        return self.recurrent_loss(backbone, batch, None)[0]

    def recurrent_loss(
        self, backbone: Backbone, batch: Segment, mems: DecodeState | None
    ) -> tuple[Tensor, DecodeState]:
        losses, mems = segment_losses(backbone, self.corpus.size, batch, mems, self.memory_length)
        return masked_mean(losses, self.is_scored(batch.tokens[:, 1:])), mems

    def loss_counts(self, backbone: Backbone, batch: Segment) -> Tensor:  # type: ignore[override]
        return super().loss_counts(backbone, batch.tokens)

    def _map_books(
        self,
        score: Callable[[Tensor, Tensor], Any],
        backbone: Backbone,
        batches: Batches,
        split: str,
        length: int,
        limit: int | None = None,
    ) -> list[Any]:
        """Return the score of the tokens and losses of each book; ``length`` includes the block and its memory."""
        blocks = BookChunks(self.corpus, split, min(length, self.block_len), limit=limit)
        remembered = max(0, length - self.block_len)

        def score_group(group: list[Segment]) -> list[Any]:
            return [score(*book) for book in read_books(backbone, self.corpus.size, group, remembered)]

        return [*chain.from_iterable(batches.map(BatchedBooks(blocks, self.evaluation_batch_size), 1, score_group))]

    def mean_loss(
        self, backbone: Backbone, batches: Batches, split: str, length: int, limit: int | None = None
    ) -> float:
        def score(tokens: Tensor, losses: Tensor) -> tuple[float, int]:
            return sum_of(losses[self.is_scored(tokens)])

        return mean_over_batches(self._map_books(score, backbone, batches, split, length, limit))

    def answers(self, facts: Facts, backbone: Backbone, batches: Batches) -> Answers:
        def score(tokens: Tensor, losses: Tensor) -> Answers:
            return facts.answers(tokens[None], losses[None])

        return [*chain.from_iterable(self._map_books(score, backbone, batches, self.test_split, self.context))]

    def test_texts(self) -> Iterable[Tensor]:
        return self.corpus.books(self.test_split)


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
