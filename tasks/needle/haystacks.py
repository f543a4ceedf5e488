"""Texts of one length with a few facts, and questions about these at the end.

A fact is one token of a name and a thing (``annalamp``) among filler words. At the end all facts are queried in random
order (``anna lamp``). Token ids are 0 empty, then the filler words, the names, the things, and names with things.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tasks.corpus.facts import NAMES, THINGS

HAY = 64
"""Number of filler words."""
FIRST_NAME = 1 + HAY
FIRST_THING = FIRST_NAME + len(NAMES)
FIRST_FACT = FIRST_THING + len(THINGS)
VOCABULARY = FIRST_FACT + len(NAMES) * len(THINGS)
SPLITS = ("train", "validation", "test")


class Haystack(NamedTuple):
    """Texts with their questions.

    Attributes:
        tokens: [B, N], the last 2 K of which are questions with answers.
        depths: [B, K], relative position of the queried fact in the haystack, from 0 to below 1.
    """

    tokens: Tensor
    depths: Tensor

    @property
    def num_queries(self) -> int:
        return self.depths.shape[1]

    @property
    def answers(self) -> Tensor:
        """The answers [B, K], every second token at the end."""
        return self.tokens[:, -2 * self.num_queries :][:, 1::2]


@dataclass(frozen=True)
class Haystacks(Dataset[Haystack]):
    """``count`` haystacks of a split, each generated on access and deterministic."""

    split: str
    count: int
    length: int
    num_needles: int

    def __len__(self) -> int:
        return self.count

    def __getitems__(self, rows: list[int]) -> Haystack:
        tokens, depths = zip(*map(self._generate, rows), strict=True)
        return Haystack(torch.from_numpy(np.stack(tokens)), torch.from_numpy(np.stack(depths)))

    def _generate(self, row: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([SPLITS.index(self.split), self.length, row])
        hay = self.length - 2 * self.num_needles
        tokens = np.empty(self.length, dtype=np.int64)
        tokens[:hay] = 1 + rng.integers(HAY, size=hay)
        places = rng.permutation(hay)[: self.num_needles]
        names = rng.permutation(len(NAMES))[: self.num_needles]
        things = rng.integers(len(THINGS), size=self.num_needles)
        tokens[places] = FIRST_FACT + names * len(THINGS) + things
        tokens[hay::2], tokens[hay + 1 :: 2] = FIRST_NAME + names, FIRST_THING + things
        return tokens, places / hay

    @property
    def digest(self) -> str:
        """Digest of the first 64 texts."""
        tokens = self.__getitems__(list(range(min(64, self.count)))).tokens
        return hashlib.sha256(tokens.numpy().tobytes()).hexdigest()[:16]
