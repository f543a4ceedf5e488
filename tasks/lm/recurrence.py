"""LM with ``trainer.memory_length``: consecutive blocks, with a recurrent memory of earlier ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from cab import Backbone
from cab.attention import DecodeState
from cab.backbone_protocols import RecurrentLM
from cab.task import Batches
from tasks.corpus.losses import recurrent_token_losses
from tasks.corpus.streams import BatchedBooks, BookChunks, Segment
from tasks.corpus.tokens import PAD, Corpus


def stretch_losses(
    backbone: Backbone, vocab_size: int, stretch: Segment, mems: DecodeState | None, remembered: int
) -> tuple[Tensor, DecodeState]:
    """Return the loss [B, N] of each token of a block after ``mems`` or nothing, and the new memory."""
    tokens, begins = stretch
    network = cast(RecurrentLM, backbone)
    mems = network.init_mems(len(tokens), remembered) if mems is None else network.reset_mems(mems, begins)
    targets = tokens[:, 1:]
    return recurrent_token_losses(backbone, vocab_size, targets, tokens[:, :-1], targets == PAD, mems=mems)


def read_books(
    backbone: Backbone, batches: Batches, corpus: Corpus, blocks: BookChunks, *, rows: int, remembered: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the tokens [n] and losses [n] of each book, in whole blocks, ``rows`` books at once."""
    mems: DecodeState | None = None
    read: list[list[Any]] = []
    for stretch in batches(BatchedBooks(blocks, rows), 1):
        if stretch.begins.all():
            yield from _joined(read)
            mems, read = None, [[] for _ in stretch.begins]
        if mems is not None:
            mems = {name: x[: len(stretch.tokens)] for name, x in mems.items()}
        losses, mems = stretch_losses(backbone, corpus.size, stretch, mems, remembered)
        for book, *block in zip(read, stretch.tokens[:, 1:], losses, strict=False):  # books that have ended are dropped
            book.append(block)
    yield from _joined(read)


def _joined(books: list[list[Any]]) -> Iterator[tuple[Tensor, Tensor]]:
    for blocks in books:
        tokens, losses = zip(*blocks, strict=True)
        yield torch.cat(tokens), torch.cat(losses)
