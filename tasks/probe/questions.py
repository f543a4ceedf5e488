"""What a probe asks, whatever the pattern, and how it is put to a network in each of the four.

An example is a ``context`` and the places where something is ``asked``, each a sequence of symbols:

* CS: the context, then the questions; an answer may use what stands before it.
* NS: half of the questions, the context, the other half; an answer may use all of it.
* NC: the context is the source, the questions are the target, all answered at once.
* CC: the same, one answer after the other: beside each question stands the answer before it, as in generation.

So one set of bytes serves all patterns, and what differs between two of them is what the attention may look at.
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
"""The symbol of a place that holds no further one; its vector is zero."""
IGNORE_INDEX = -100
"""In place of an answer: nothing is asked there."""


class ProbeBatch(NamedTuple):
    """``context`` [B, M, S] and ``asked`` [B, Q, S] symbols, ``answers`` [B, A]; ids are int64.

    A is Q, or for a single question (Q = 1) any number of answers that its one place must hold.
    """

    context: Tensor
    asked: Tensor
    answers: Tensor


class Examples(Dataset[ProbeBatch]):
    """Questions of a part, made at once."""

    def __init__(self, questions: ProbeBatch) -> None:
        self.questions = questions

    def __len__(self) -> int:
        return len(self.questions.answers)

    def __getitems__(self, rows: list[int]) -> ProbeBatch:
        return ProbeBatch(*(x[rows] for x in self.questions))

    @property
    def digest(self) -> str:
        """Of all bytes."""
        digest = hashlib.sha256()
        for x in self.questions:
            digest.update(np.ascontiguousarray(x.numpy()).tobytes())
        return digest.hexdigest()[:16]


def questions(context: np.ndarray, asked: np.ndarray, answers: np.ndarray) -> ProbeBatch:
    """Arrays of ids as :class:`ProbeBatch`; places of one symbol may leave out the last dimension."""
    context, asked = (x[..., None] if x.ndim == 2 else x for x in (context, asked))
    return ProbeBatch(*(torch.from_numpy(np.ascontiguousarray(x, dtype=np.int64)) for x in (context, asked, answers)))


def stream(symbols: np.ndarray, answers: np.ndarray) -> ProbeBatch:
    """A sequence that tells and asks as it goes, with an answer, or :data:`IGNORE_INDEX`, at each place."""
    return questions(symbols[:, :0], symbols, answers)


def ask(backbone: Backbone, batch: ProbeBatch) -> Tensor:
    """Logits of the answers, [B, A, V]."""
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
    """Questions [B, Q, S + 1], each with the answer to the one before it."""
    if answers.shape[1] != asked.shape[1]:
        return asked
    previous = F.pad(answers[:, :-1], (1, 0), value=NOTHING)
    return torch.cat([asked, previous.unsqueeze(-1)], dim=-1)
