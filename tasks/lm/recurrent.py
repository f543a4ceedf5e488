"""LM with segment-level recurrence (Dai et al. 2019): each layer also reads its inputs at earlier tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

from torch import Tensor

from cab import Backbone, UserError, register_task
from cab.attention import DecodeState
from cab.backbone_protocols import RecurrentLM
from cab.registry.options import Positive
from cab.task import Batches
from tasks.corpus.facts import FactScores
from tasks.lm.recurrence import BookChunks, Segment, read_books, segment_losses
from tasks.lm.task import LM


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

    def loss(self, backbone: Backbone, batch: Segment) -> Tensor:
        return self.recurrent_loss(backbone, batch, None)[0]

    def recurrent_loss(
        self, backbone: Backbone, batch: Segment, mems: DecodeState | None
    ) -> tuple[Tensor, DecodeState]:
        losses, mems = segment_losses(backbone, self.corpus.size, batch, mems, self.memory_length)
        scored = self.is_scored(batch.tokens[:, 1:])
        return losses[scored].sum() / scored.sum().clamp(min=1), mems

    def loss_counts(self, backbone: Backbone, batch: Segment) -> Tensor:  # type: ignore[override]
        return super().loss_counts(backbone, batch.tokens)

    def split_losses(
        self, backbone: Backbone, batches: Batches, split: str, length: int, limit: int | None
    ) -> Iterator[Tensor]:
        books = self._books(backbone, batches, split, length, limit)
        return (losses[self.is_scored(tokens)] for tokens, losses in books)

    def _books(
        self, backbone: Backbone, batches: Batches, split: str, length: int, limit: int | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield tokens and losses of books; ``length`` includes the block and its memory."""
        blocks = BookChunks(self.corpus, split, min(length, self.block_len), limit=limit)
        rows, remembered = self.evaluation_batch_size, max(0, length - self.block_len)
        return read_books(backbone, batches, self.corpus, blocks, rows=rows, remembered=remembered)

    def level_scores(self, scores: FactScores, backbone: Backbone, batches: Batches) -> dict[str, float]:
        for tokens, losses in self._books(backbone, batches, "test", self.context):
            scores.add(tokens[None], losses[None])
        return scores.perplexities()

    def test_texts(self) -> Iterable[Tensor]:
        return self.corpus.books("test")
