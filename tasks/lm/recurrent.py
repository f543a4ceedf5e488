"""LM with segment-level recurrence (Dai et al. 2019): each layer also reads its inputs at earlier tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, cast

from torch import Tensor
from torch.utils.data import Dataset

from cab import Backbone, UserError, register_task
from cab.attention import DecodeState
from cab.backbone_protocols import RecurrentLM
from cab.metric import mean_over_batches
from cab.registry.options import Positive
from cab.task import Batches
from tasks.corpus.facts import Answers, Facts
from tasks.corpus.losses import sum_of
from tasks.lm.recurrence import BatchedBooks, BookChunks, Segment, read_books, segment_losses
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
