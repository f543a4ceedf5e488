"""Needle protocol: fraction of the facts that are retrieved, by depth and text length.

Texts have one length and a few facts, and questions about these at the end. A fact is one token of a name and a thing
(``annalamp``) among filler words. At the end all facts are queried in random order (``anna lamp``). Token ids are 0
empty, then the filler words, the names, the things, and names with things.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from cab import Backbone, Task, UserError, register_task
from cab.backbone_protocols import TokenLM
from cab.metric import Metric, mean_over_batches
from cab.registry.options import Positive
from cab.task import Batches
from tasks.corpus.facts import NAMES, THINGS

log = logging.getLogger(__name__)

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


@register_task(
    "needle",
    paper="Kamradt 2023",
    datasets="synthetic",
    backbones={"gpt2": "CS"},
    in_index=False,
    report="tasks.needle.report:SECTION",
    options_from_task="lm",
)
@dataclass(kw_only=True, eq=False)
class Needle(Task):
    """Retrieve the thing that occurred once with a name, at any depth of a text, also beyond the training length.

    The grid of depth and length follows the needle in a haystack test (Kamradt 2023); the texts are generated.

    Args:
        dataset: synthetic.
        length: tokens per training text, including questions.
        multiples: test lengths in multiples of the training length; the first is 1, and its accuracy is the score.
        num_needles: facts per text, all of them queried, at every length.
        depths: number of equal parts of a text with separate scores.
        examples, test_examples: number of training examples, and of examples in validation and per test length.
        evaluation_batch_size: texts per batch in validation and test.
    """

    required_protocols: ClassVar = (TokenLM,)

    dataset: str
    length: int = 2048
    multiples: Sequence[int] = (1, 2, 4)
    num_needles: Positive = 8
    depths: Positive = 5
    examples: Positive = 100_000
    test_examples: Positive = 512
    evaluation_batch_size: Positive = 8

    @property
    def config_variant(self) -> str:
        """Return the settings that determine the difficulty."""
        return f"{self.num_needles} facts, learned at {self.length} tokens"

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.length * multiple for multiple in self.multiples)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        names: dict[str, int | None] = {f"accuracy_{length}": length for length in self.lengths}
        names |= dict.fromkeys(name for length in self.lengths for name in self._by_depth(length))
        others = [Metric(name, "of answers", True, primary=False, at_length=at) for name, at in names.items()]
        return Metric("accuracy", "of answers", higher_is_better=True), *others

    def _by_depth(self, length: int) -> list[str]:
        """Return the names of the scores at a length, with the center of each part of the text in percent."""
        return [f"accuracy_{length}_depth_{100 * (2 * part + 1) // (2 * self.depths)}" for part in range(self.depths)]

    def check(self) -> None:
        if self.num_needles > len(NAMES):
            raise UserError(f"task.num_needles must be at most {len(NAMES)} (names), got {self.num_needles}")
        if self.depths > 50:
            raise UserError(f"task.depths must be at most 50, got {self.depths}")
        if self.length < 3 * self.num_needles:
            raise UserError(
                f"task.length must be at least {3 * self.num_needles}, for {self.num_needles} facts and as many "
                f"questions and answers, got {self.length}"
            )
        if [1, *self.multiples[1:]] != sorted({*self.multiples}):
            raise UserError(f"task.multiples must start with 1 and increase, got {list(self.multiples)}")

    def setup(self, data_root: Path | None) -> None:  # noqa: ARG002
        counts = dict(zip(SPLITS, (self.examples, self.test_examples, self.test_examples), strict=True))
        self.splits = {split: Haystacks(split, count, self.length, self.num_needles) for split, count in counts.items()}

    @property
    def _tests(self) -> dict[int, Haystacks]:
        count, needles = self.test_examples, self.num_needles
        return {length: Haystacks(self.test_split, count, length, needles) for length in self.lengths}

    def fingerprint(self) -> dict[str, Any]:
        splits = {**self.splits, **{str(length): split for length, split in self._tests.items()}}
        return {name: {"examples": len(split), "sha256": split.digest} for name, split in splits.items()}

    def backbone_options(self, backbone: str) -> dict[str, Any]:  # noqa: ARG002
        return {"vocab_size": VOCABULARY}

    def logits(self, backbone: Backbone, batch: Haystack) -> Tensor:
        """Return the logits of the answers, [B, K, V], each from the tokens before it."""
        return backbone(batch.tokens[:, :-1])[:, -2 * batch.num_queries + 1 :][:, ::2].float()

    def loss(self, backbone: Backbone, batch: Haystack) -> Tensor:
        """Return the mean negative log-likelihood of the answers, in nats."""
        return F.cross_entropy(self.logits(backbone, batch).flatten(0, 1), batch.answers.flatten())

    def validate(self, backbone: Backbone, batches: Batches) -> float:
        def score(batch: Haystack) -> tuple[float, int]:
            return self.loss(backbone, batch).item() * len(batch.tokens), len(batch.tokens)

        return mean_over_batches(batches.map(self.splits["validation"], self.evaluation_batch_size, score))

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        scores: dict[str, float] = {}
        for length, split in self._tests.items():
            names = [f"accuracy_{length}", *self._by_depth(length)]
            try:
                accuracies = self._accuracies(backbone, batches, split)
            except (UserError, torch.OutOfMemoryError) as error:
                if length == self.length:
                    raise
                log.warning("accuracy at length %d failed: %s", length, error)
                scores |= dict.fromkeys(names, math.nan)
                continue
            scores |= dict(zip(names, accuracies, strict=True))
        return {"accuracy": scores[f"accuracy_{self.length}"], **scores}

    def _accuracies(self, backbone: Backbone, batches: Batches, split: Haystacks) -> list[float]:
        """Return the accuracy of all answers, then that in each part of the text; NaN without facts."""

        def score(batch: Haystack) -> list[tuple[int, int]]:
            correct = self.logits(backbone, batch).argmax(-1) == batch.answers
            depth = (batch.depths * self.depths).long()
            groups = [correct, *(correct[depth == number] for number in range(self.depths))]
            return [(int(group.sum()), group.numel()) for group in groups]

        groups = zip(*batches.map(split, self.evaluation_batch_size, score), strict=True)
        return [mean_over_batches(group) for group in groups]

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the accuracy of a random thing of the text, the best without looking up names."""
        scores = {}
        for length, split in self._tests.items():
            answers = split.__getitems__(list(range(len(split)))).answers - FIRST_THING
            counts = F.one_hot(answers).sum(dim=1).double() / self.num_needles
            scores[f"accuracy_{length}"] = counts.amax(dim=1).mean().item()
        return {"most_frequent_in_context": {"accuracy": scores[f"accuracy_{self.length}"], **scores}}
