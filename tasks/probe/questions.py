"""Probe queries independent of the pattern, and how a network reads them in each of the four patterns.

An example is a ``context`` and the queries ``asked``, each a sequence of symbols:

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

NOTHING = 0
"""The symbol of an unused slot of a position; its vector is zero."""
IGNORE_INDEX = -100
"""Replaces the answer at positions without a query."""


class ProbeBatch(NamedTuple):
    """``context`` [B, M, S] and ``asked`` [B, Q, S] symbols, ``answers`` [B, A]; ids are int64.

    A is Q, or any number of answers for a single query (Q = 1), all read from its position.
    """

    context: Tensor
    asked: Tensor
    answers: Tensor


class Examples(Dataset[ProbeBatch]):
    """Examples of a part, generated at once."""

    def __init__(self, questions: ProbeBatch) -> None:
        self.questions = questions

    def __len__(self) -> int:
        return len(self.questions.answers)

    def __getitems__(self, rows: list[int]) -> ProbeBatch:
        return ProbeBatch(*(x[rows] for x in self.questions))

    @property
    def digest(self) -> str:
        """Return a digest of all data."""
        digest = hashlib.sha256()
        for x in self.questions:
            digest.update(np.ascontiguousarray(x.numpy()).tobytes())
        return digest.hexdigest()[:16]


def questions(context: np.ndarray, asked: np.ndarray, answers: np.ndarray) -> ProbeBatch:
    """Convert arrays of ids to a :class:`ProbeBatch`; the last dimension may be omitted for single symbols."""
    context, asked = (x[..., None] if x.ndim == 2 else x for x in (context, asked))
    return ProbeBatch(*(torch.from_numpy(np.ascontiguousarray(x, dtype=np.int64)) for x in (context, asked, answers)))


def stream(symbols: np.ndarray, answers: np.ndarray) -> ProbeBatch:
    """Build a sequence with inline queries: an answer, or :data:`IGNORE_INDEX`, at each position."""
    return questions(symbols[:, :0], symbols, answers)


def ask(backbone: Backbone, batch: ProbeBatch) -> Tensor:
    """Return the logits of the answers, [B, A, V]."""
    network = cast(Prober, backbone)
    context, asked, answers = batch
    read = network.unpack if answers.shape[1] != asked.shape[1] else network
    if network.pattern is Pattern.CC:
        return read(_after_its_answer(asked, answers), context)
    if network.pattern is Pattern.NC:
        return read(asked, context)
    before = asked.shape[1] // 2 if network.pattern is Pattern.NS else 0
    logits = read(torch.cat([asked[:, :before], context, asked[:, before:]], dim=1))
    if read is not network:
        return logits
    return torch.cat([logits[:, :before], logits[:, before + context.shape[1] :]], dim=1)


def _after_its_answer(asked: Tensor, answers: Tensor) -> Tensor:
    """Return queries [B, Q, S + 1], each with the answer to the previous one."""
    if answers.shape[1] != asked.shape[1]:
        return asked
    previous = F.pad(answers[:, :-1], (1, 0), value=NOTHING)
    return torch.cat([asked, previous.unsqueeze(-1)], dim=-1)
