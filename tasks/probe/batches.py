"""Probe queries independent of the pattern, and how a network reads them in each of the four patterns.

An example has a ``context`` and ``queries``, each a sequence of symbols:

* CS: the context, then the queries; an answer may use all earlier positions.
* NS: half of the queries, the context, the other half; an answer may use all positions.
* NC: the context is the source, the queries are the target, all answered at once.
* CC: as NC, one answer after the other: each query includes the previous answer, as in generation.

All patterns thus read identical data and differ only in what the attention may see.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from cab import Backbone, Pattern
from cab.backbone_protocols import Prober

EMPTY_SYMBOL = 0
"""The symbol of an unused slot of a position; its vector is zero."""
IGNORE_INDEX = -100
"""Replaces the answer at positions without a query."""


class ProbeBatch(NamedTuple):
    """``context`` [B, M, S] and ``queries`` [B, Q, S] symbols, ``answers`` [B, A]; ids are int64.

    A is Q, or any number of answers for a single query (Q = 1), all read from its position.
    """

    context: Tensor
    queries: Tensor
    answers: Tensor


class Examples(Dataset[ProbeBatch]):
    """Examples of a split, generated at once."""

    def __init__(self, batch: ProbeBatch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch.answers)

    def __getitems__(self, rows: list[int]) -> ProbeBatch:
        return ProbeBatch(*(x[rows] for x in self.batch))

    @property
    def digest(self) -> str:
        """Digest of all data."""
        digest = hashlib.sha256()
        for x in self.batch:
            digest.update(np.ascontiguousarray(x.numpy()).tobytes())
        return digest.hexdigest()[:16]


def probe_batch(context: np.ndarray, queries: np.ndarray, answers: np.ndarray) -> ProbeBatch:
    """Convert arrays of ids to a :class:`ProbeBatch`; the last dimension may be omitted for single symbols."""
    context, queries = (x[..., None] if x.ndim == 2 else x for x in (context, queries))
    return ProbeBatch(*(torch.from_numpy(np.ascontiguousarray(x, dtype=np.int64)) for x in (context, queries, answers)))


def inline_queries(symbols: np.ndarray, answers: np.ndarray) -> ProbeBatch:
    """Build a sequence with inline queries: an answer, or :data:`IGNORE_INDEX`, at each position."""
    return probe_batch(symbols[:, :0], symbols, answers)


def query_logits(backbone: Backbone, batch: ProbeBatch) -> Tensor:
    """Return the logits of the answers, [B, A, V]."""
    network = cast(Prober, backbone)
    context, queries, answers = batch
    read = network.decode_compressed if answers.shape[1] != queries.shape[1] else network
    if network.pattern is Pattern.CC:
        if answers.shape == queries.shape[:2]:  # each query includes the answer to the previous one
            queries = torch.cat([queries, F.pad(answers[:, :-1], (1, 0), value=EMPTY_SYMBOL).unsqueeze(-1)], dim=-1)
        return read(queries, context)
    if network.pattern is Pattern.NC:
        return read(queries, context)
    half = queries.shape[1] // 2 if network.pattern is Pattern.NS else 0
    logits = read(torch.cat([queries[:, :half], context, queries[:, half:]], dim=1))
    if read is not network:
        return logits
    return torch.cat([logits[:, :half], logits[:, half + context.shape[1] :]], dim=1)
