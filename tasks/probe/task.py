"""Protocol of the synthetic probes: fraction of correct answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cab import Backbone, Task, UserError, register_task
from cab.backbone_protocols import Prober
from cab.metric import Metric, mean_over_batches
from cab.registry.options import Positive
from cab.task import Batches
from tasks.probe import algorithms, mad, recall
from tasks.probe.batches import EMPTY_SYMBOL, IGNORE_INDEX, Examples, ProbeBatch, inline_queries, query_logits

IN_CONTEXT = ("recall", "noisy")
"""Data sets whose answers are values in the context."""
OF_PAIRS = ("copying", "compression")
"""Data sets whose examples are ``pairs`` symbols to copy or to compress."""
ALGORITHMS = ("copy", "reverse", "addition")
STATE_GROUPS = ("parity", "modulo3", "s3", "s5")
PROBE_SPLITS = ("train", "validation", "test", "longer")


@register_task(
    "probe",
    paper="Poli et al. 2024; Arora et al. 2024; Dehghani et al. 2019; Grazzi et al. 2025",
    datasets="recall noisy copying compression mad_recall mad_noisy mad_fuzzy mad_copying mad_memorization mqar "
    "copy reverse addition parity modulo3 s3 s5",
    backbones={"mixer": "NS CS NC CC"},
    dataset_patterns={  # a literal, which the registry reads without importing the module
        "mad_recall": "CS",
        "mad_noisy": "CS",
        "mad_fuzzy": "CS",
        "mad_copying": "CS",
        "mad_memorization": "CS",
        "mqar": "CS",
        "copy": "CS",
        "reverse": "CS",
        "addition": "CS",
        "parity": "CS",
        "modulo3": "CS",
        "s3": "CS",
        "s5": "CS",
    },
    in_index=False,
    report="tasks.probe.report:SECTION",
)
@dataclass(kw_only=True, eq=False)
class Probe(Task):
    """Answer queries that test one capability of an attention: lookup, selection, order, compression.

    ``recall``, ``noisy``, ``copying`` and ``compression`` are identical data in all four patterns
    (:mod:`tasks.probe.batches`); in pattern CS, ``compression`` is MAD's. ``mad_*`` are its other five tasks,
    ``mqar`` is Zoology's, ``copy``, ``reverse`` and ``addition`` are the algorithms of the Universal Transformer;
    ``parity``, ``modulo3``, ``s3`` and ``s5`` track the state of a group (:func:`word_problem`).

    Args:
        dataset: the probe.
        vocab_size: in ``recall``, ``noisy``, ``copying`` and ``compression`` the number of values, and of keys; in the
            algorithms the number of digits; otherwise of all symbols, as published.
        length: positions per example of ``mad_*`` and ``mqar``; maximum input symbols of the algorithms and groups.
        longer_length: maximum input symbols of the algorithms in an additional test split, and those of the groups in
            the test.
        pairs: facts per example, or symbols to copy or compress.
        distance: number of fillers between context and queries.
        noise: fraction of pairs that are never queried.
        num_queries: queries per example of ``recall`` and ``noisy``.
        train_on: the ``answers``, or ``all`` next tokens, as MAD does in recall.
        examples, test_examples: number of training examples, and of examples in each other split.
        evaluation_batch_size: examples per batch in validation and test.
    """

    required_protocols: ClassVar = (Prober,)

    dataset: str
    vocab_size: Positive = 16
    length: Positive = 128
    longer_length: Positive = 400
    pairs: Positive = 16
    distance: int = 0
    noise: float = 0.0
    num_queries: Positive = 16
    train_on: Literal["answers", "all"] = "answers"
    examples: Positive = 12800
    test_examples: Positive = 1280
    evaluation_batch_size: Positive = 128

    @property
    def config_variant(self) -> str:
        """Return the settings that determine the difficulty."""
        if self.dataset in (*IN_CONTEXT, *OF_PAIRS):
            settings = {"pairs": self.pairs, "distance": self.distance}
        else:
            settings = {"length": self.length}
            settings |= {"pairs": self.pairs} if self.dataset in ("mqar", "mad_copying") else {}
        noise = f" noise {self.noise:g}" if self.noise else ""
        return f"vocabulary {self.vocab_size} {' '.join(f'{k} {value}' for k, value in settings.items())}{noise}"

    @property
    def metrics(self) -> tuple[Metric, ...]:
        names = {"accuracy": "of answers", "sequences": "all right"}
        if self.dataset in ALGORITHMS:
            names |= {"accuracy_longer": "of answers", "sequences_longer": "all right"}
        primary = "accuracy"
        if self.dataset in STATE_GROUPS:
            names, primary = {"horizon": "positions", **names}, "horizon"
        return tuple(Metric(name, unit, True, primary=name == primary) for name, unit in names.items())

    def check(self) -> None:
        if not 0.0 <= self.noise < 1.0:
            raise UserError(f"task.noise must be from 0 to below 1, got {self.noise}")
        if self.noise and self.dataset not in ("noisy", "mad_noisy"):
            raise UserError(f"task.noise applies to noisy and mad_noisy, not to {self.dataset}")
        if self.dataset in IN_CONTEXT and self.pairs > self.vocab_size:
            raise UserError(f"task.pairs {self.pairs} needs as many keys: raise task.vocab_size to {self.pairs}")
        vocab_sizes = {"mad_recall": 4, "mad_noisy": mad.NOISE_SYMBOLS + 4, "mad_fuzzy": 2 * mad.LONGEST_KEY + 1}
        vocab_sizes |= {"mqar": 2 * self.pairs + 2, "mad_copying": 3, "mad_memorization": 6}
        lengths = {"mqar": 4 * self.pairs, "mad_copying": 2 * self.pairs + 2, "mad_fuzzy": 6 * mad.LONGEST_KEY}
        smallest = {"vocab_size": vocab_sizes.get(self.dataset, 2), "length": lengths.get(self.dataset, 4)}
        for name, minimum in {**smallest, "longer_length": 4}.items():
            if getattr(self, name) < minimum:
                raise UserError(f"task.{name} must be at least {minimum} for {self.dataset}, got {getattr(self, name)}")
        if self.length % 2 and self.dataset in ("mad_recall", "mad_noisy", "mad_memorization", "mqar"):
            raise UserError(f"task.length must be even for {self.dataset}, got {self.length}")

    def setup(self, data_root: Path | None) -> None:  # noqa: ARG002
        splits = PROBE_SPLITS if self.dataset in ALGORITHMS else PROBE_SPLITS[:3]
        self.splits = {split: Examples(self._generate(split)) for split in splits}

    def _generate(self, split: str) -> ProbeBatch:
        rng = np.random.default_rng(PROBE_SPLITS.index(split))
        rows = self.examples if split == "train" else self.test_examples
        packed: dict[str, Any] = {"vocab_size": self.vocab_size, "pairs": self.pairs, "distance": self.distance}
        asked = {**packed, "noise": self.noise, "num_queries": self.num_queries}
        length = self.longer_length if split == "longer" else self.length
        fixed: dict[str, Any] = {"vocab_size": self.vocab_size, "length": length}
        everything = split == "train" and self.train_on == "all"
        longest = self.longer_length if split == "test" else self.length
        sizes: dict[str, Any] = {"shortest": longest if split == "test" else FEWEST_ELEMENTS, "longest": longest}
        generators = {
            "recall": partial(recall.recall, **asked),
            "noisy": partial(recall.recall, **asked),
            "copying": partial(recall.copying, **packed),
            "compression": partial(recall.compression, **packed),
            "mad_recall": partial(mad.recall, **fixed, noise=0.0, everything=everything),
            "mad_noisy": partial(mad.recall, **fixed, noise=self.noise, everything=everything),
            "mad_fuzzy": partial(mad.fuzzy, **fixed, everything=everything, test=split != "train"),
            "mad_copying": partial(mad.selective_copying, **fixed, pairs=self.pairs),
            "mad_memorization": partial(mad.memorization, **fixed),
            "mqar": partial(recall.mqar, **fixed, pairs=self.pairs),
            "copy": partial(algorithms.copy, **fixed),
            "reverse": partial(algorithms.copy, **fixed, reverse=True),
            "addition": partial(algorithms.addition, **fixed),
            **{group: partial(word_problem, group=group, **sizes) for group in STATE_GROUPS},
        }
        return generators[self.dataset](rng, rows)

    def fingerprint(self) -> dict[str, Any]:
        return {split: {"examples": len(rows), "sha256": rows.digest} for split, rows in self.splits.items()}

    def backbone_options(self, backbone: str) -> dict[str, Any]:  # noqa: ARG002
        batches = [split.batch for split in self.splits.values()]
        options = {
            "vocab_size": 1 + max(int(x.max()) for batch in batches for x in batch if x.numel()),
            "max_length": max(batch.context.shape[1] + batch.queries.shape[1] for batch in batches),
        }
        if self.dataset == "compression":
            options["num_compressed_symbols"] = self.pairs
        return options

    def loss(self, backbone: Backbone, batch: ProbeBatch) -> Tensor:
        """Return the mean negative log-likelihood of the answers, in nats."""
        logits = query_logits(backbone, batch).flatten(0, 1).float()
        return F.cross_entropy(logits, batch.answers.flatten(), ignore_index=IGNORE_INDEX)

    def loss_counts(self, backbone: Backbone, batch: ProbeBatch) -> Tensor:  # noqa: ARG002
        return (batch.answers != IGNORE_INDEX).sum()

    def validate(self, backbone: Backbone, batches: Batches) -> float:
        def score(batch: ProbeBatch) -> tuple[float, int]:
            count = int(self.loss_counts(backbone, batch))
            return self.loss(backbone, batch).item() * count, count

        return mean_over_batches(batches.map(self.splits["validation"], self.evaluation_batch_size, score))

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        scores = self._scores(backbone, batches, self.test_split)
        if "longer" in self.splits:
            longer = self._scores(backbone, batches, "longer")
            scores |= {f"{name}_longer": value for name, value in longer.items()}
        return scores

    def _scores(self, backbone: Backbone, batches: Batches, split: str) -> dict[str, float]:
        def score(batch: ProbeBatch) -> dict[str, Any]:
            return self._counts(query_logits(backbone, batch).argmax(-1), batch.answers)

        return self._scores_of(batches.map(self.splits[split], self.evaluation_batch_size, score))

    def _counts(self, guesses: Tensor, answers: Tensor) -> dict[str, Any]:
        """Return the correct and all answers and sequences, and for states the answers at each position."""
        groups = {"right": guesses == answers, "asked": answers != IGNORE_INDEX} if self.dataset in STATE_GROUPS else {}
        return {**_correct(guesses, answers), **{name: group.sum(0).tolist() for name, group in groups.items()}}

    def _scores_of(self, counts: Sequence[dict[str, Any]]) -> dict[str, float]:
        scores: dict[str, float] = {
            name: mean_over_batches(each[name] for each in counts) for name in ("accuracy", "sequences")
        }
        if self.dataset in STATE_GROUPS:
            right, asked = (np.sum([each[name] for each in counts], axis=0) for name in ("right", "asked"))
            scores["horizon"] = horizon(right / np.maximum(asked, 1))  # short sequences have no last answers
        return scores

    def baselines(self) -> dict[str, dict[str, float]]:
        """Predict the most frequent validation answer; for answers from the context, its most frequent value."""
        answers = self.splits["validation"].batch.answers  # in training MAD predicts every next token
        commonest = int(answers[answers != IGNORE_INDEX].mode().values)
        test = self.splits[self.test_split].batch
        guesses = {"commonest": torch.full_like(test.answers, commonest)}
        if self.dataset in IN_CONTEXT:
            values = test.context[..., 1]
            fillers = -torch.arange(1, values.shape[1] + 1)  # distinct, so never the mode
            values = values.where(values > 0, fillers)
            guesses["most_frequent_in_context"] = values.mode(dim=1, keepdim=True).values.expand(-1, self.num_queries)
        return {name: self._scores_of([self._counts(guess, test.answers)]) for name, guess in guesses.items()}


def _correct(guesses: Tensor, answers: Tensor) -> dict[str, tuple[int, int]]:
    """Return the correct and all answers (``accuracy``), and examples with only correct answers (``sequences``)."""
    asked = answers != IGNORE_INDEX
    right = (guesses == answers) & asked
    return {
        "accuracy": (int(right.sum()), int(asked.sum())),
        "sequences": (int((right | ~asked).all(dim=1).sum()), len(answers)),
    }


CYCLIC = {"parity": 2, "modulo3": 3}  # cyclic groups, and their number of elements
PERMUTED = {"s3": 3, "s5": 5}  # groups of permutations, and the number of permuted elements
FEWEST_ELEMENTS = 3
"""Elements of the shortest sequence."""
HORIZON_ACCURACY = 0.9
"""Accuracy at each position up to the horizon."""


def products(group: str) -> np.ndarray:
    """Return the products a b of the elements 0, 1, ... of a group, of which 0 is the identity, [G, G]."""
    if group in CYCLIC:
        element = np.arange(CYCLIC[group])
        return (element[:, None] + element) % len(element)
    size = PERMUTED[group]
    elements = np.array(list(permutations(range(size))))
    place = size ** np.arange(size)[::-1]  # a permutation as a number: they are sorted
    return np.searchsorted(elements @ place, elements[:, elements] @ place)


def word_problem(rng: np.random.Generator, rows: int, *, group: str, shortest: int, longest: int) -> ProbeBatch:
    """Generate ``shortest`` to ``longest`` random elements x_1, x_2, ...; answers are x_t ... x_2 x_1 at each t.

    State tracking as in Merrill et al. 2024 and Grazzi et al. 2025 (arXiv:2411.12537): learned on short sequences and
    tested on long ones.
    """
    table = products(group)
    elements = rng.integers(len(table), size=(rows, longest))
    state = np.zeros(rows, dtype=np.int64)
    states = np.stack([state := table[element, state] for element in elements.T], axis=1)
    beyond = np.arange(longest) >= rng.integers(shortest, longest, size=(rows, 1), endpoint=True)
    return inline_queries(np.where(beyond, EMPTY_SYMBOL, 1 + elements), np.where(beyond, IGNORE_INDEX, 1 + states))


def horizon(accuracy: np.ndarray) -> int:
    """Return the number of first positions at each of which the accuracy [N] is at least :data:`HORIZON_ACCURACY`."""
    return int((accuracy >= HORIZON_ACCURACY).cumprod().sum())
