"""Vocabulary and facts of generated books: which tokens are answers, and the distance of each to its fact.

Each word, and each name with a thing (``annalamp``), is one token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Interval
from torch import Tensor

from cab import UserError
from tasks.corpus.tokens import NUM_SPECIAL, Corpus, perplexity

ALL_NAMES = (
    "anna", "boris", "clara", "david", "elena", "felix", "greta", "henry", "irina", "jonas", "karin", "louis",
    "maria", "niels", "olga", "peter", "quinn", "rosa", "simon", "tanja", "ulrich", "vera", "walter", "xenia",
    "yusuf", "zelda", "amir", "beate", "cyril", "doris", "emil", "frieda",
)  # fmt: skip
USUAL_NAMES = ALL_NAMES[:16]
THINGS = (
    "lamp", "coin", "ring", "book", "knife", "harp", "letter", "mirror", "basket", "hammer", "flute",
    "candle", "rope", "drum", "vase", "clock",
)  # fmt: skip
CHAPTERS = 32
"""Chapters per book."""
Names = Annotated[int, Interval(ge=1, le=len(ALL_NAMES))]
"""Number of names in generated books."""
NO_DISTANCE = 10**6
"""Distance in tokens if the fact does not occur before."""
Answers = list[tuple[float, int]]
"""Loss of each answer, and the distance in tokens to the last occurrence of the answer."""


@dataclass(frozen=True)
class Facts:
    """Dictionary entries that are names, things or facts.

    Attributes:
        name, thing: [entries] index of the name or thing of an entry, or -1; a fact has both.
        is_answer: [entries] bool, True for things.
    """

    name: np.ndarray
    thing: np.ndarray
    is_answer: Tensor

    @classmethod
    def of(cls, corpus: Corpus) -> Facts:
        """Derive the facts from a corpus; raise UserError if the tokenizer splits their words."""
        name, thing = np.full((2, corpus.size), -1)
        for n, a in enumerate(["", *ALL_NAMES], -1):
            for t, b in enumerate(["", *THINGS], -1):
                ids = corpus.tokenizer.encode(f" {a}{b}").ids
                if len(ids) == 1 and a + b:
                    name[corpus.dictionary[ids[0]]], thing[corpus.dictionary[ids[0]]] = n, t
        name[:NUM_SPECIAL] = thing[:NUM_SPECIAL] = -1  # unknown entries stay at -1
        is_answer = (thing >= 0) & (name < 0)
        if is_answer.sum() < len(THINGS):
            raise UserError(
                "the words of generated books must be single tokens: set task.vocab_size to 800 or more, or to 1000 or "
                "more with 32 names"
            )
        return cls(name, thing, torch.from_numpy(is_answer))

    def distances(self, entries: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the position of every answer and the distance to the last occurrence of its fact or answer."""
        last_told: dict[int, int] = {}
        asked = -1
        for place, entry in enumerate(entries):
            name, thing = int(self.name[entry]), int(self.thing[entry])
            if thing >= 0 and name < 0:
                yield place, place - last_told.get(asked, -NO_DISTANCE)
            if thing >= 0:
                last_told[name if name >= 0 else asked] = place
            asked = name

    def answers(self, tokens: Tensor, losses: Tensor) -> Answers:
        """Return the answers in tokens [B, N] with these losses, except those whose loss is NaN."""
        return [
            (row_losses[place], distance)
            for row, row_losses in zip(tokens.tolist(), losses.tolist(), strict=True)
            for place, distance in self.distances(row)
            if not math.isnan(row_losses[place])
        ]

    def looked_up(self, texts: Iterable[Tensor], window: int) -> Answers:
        """Return the answers of ideal lookup by name within ``window`` preceding tokens, for sequences [N]."""
        answers = (distance for tokens in texts for _, distance in self.distances(tokens.tolist()))
        return [(0.0 if distance <= window else math.log(len(THINGS)), distance) for distance in answers]


def level_perplexities(answers: Sequence[tuple[float, int]], levels: Mapping[str, range]) -> dict[str, float]:
    """Return ``ppl``, the perplexity of all answers, and ``ppl_LEVEL`` of those at each level of distance."""
    groups = {"ppl": [loss for loss, _ in answers]}
    groups |= {f"ppl_{level}": [x for x, distance in answers if distance in at] for level, at in levels.items()}
    return {name: perplexity(sum(losses) / len(losses)) if losses else math.nan for name, losses in groups.items()}


def names_variant(dataset: str, names: int) -> str:
    """Return the variant of the configuration: ``names 32`` if generated books differ from the default, else empty."""
    return f"names {names}" if dataset == "synthetic" and names != len(USUAL_NAMES) else ""
