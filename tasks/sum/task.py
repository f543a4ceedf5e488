"""Sum protocol: train by teacher forcing, summarize by search, score by ROUGE."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from backbones.generation import Limits, beam_search, greedy
from cab import Backbone, UserError, register_task
from cab.backbone_protocols import SequenceToSequence
from cab.files.cache import digest_of
from cab.metric import Metric, mean_over_batches, mean_scores
from cab.registry.options import Positive
from cab.task import Batches
from tasks.bpe import find_tokenizer, tokenizer_data, tokenizer_path, vocabulary_size
from tasks.files import VAL_SPLITS, warn_of_repeats
from tasks.source import TextTask
from tasks.sum.data import SEPARATOR, SPECIAL_TOKENS, SUM_LEVELS, SUM_VERSION, SUMMARY_WORDS, EncodedPairs, find_pairs

Batch = Mapping[str, Tensor]


@register_task(
    "sum", paper="Fabbri et al. 2019", datasets="multi_news synthetic", backbones={"transformer": "NS CS CC"}
)
@dataclass(kw_only=True, eq=False)
class Sum(TextTask):
    """Summarize several news articles in one text.

    Args:
        dataset: multi_news, synthetic, or with ``source`` any name.
        tokenizer: ``bart``, BART's, as published; a tokenizer.json, or a folder with one, with BART's special tokens;
            by default, a byte-level BPE of ``vocab_size`` entries is trained on the training split.
        vocab_size: size of the trained tokenizer.
        empty: ``stop`` at an example without a document or summary, or ``skip`` it; the official training split has a
            few.
        source_len, target_len: maximum tokens of the documents, and of a summary including its end token.
        ends: add an end token to all ``targets``, or, as in ParaGen, to ``short`` sources and targets, which are not
            truncated.
        label_smoothing: of the training loss.
        search: ``greedy``, as published, or ``beam``.
        min_length, max_length: limits of generated summaries, in tokens.
        num_beams, length_penalty, blocked_ngram: options of beam search; n-grams of the given size are never repeated.
        evaluation_batch_size: examples per batch in validation and test.
    """

    version = 2
    packages: ClassVar[Mapping[str, str]] = {"tokenizers": "text", "rouge_score": "text"}
    required_protocols: ClassVar = (SequenceToSequence,)

    source_columns: Sequence[str] = ("document", "summary")
    tokenizer: str | None = None
    vocab_size: int = 50265
    empty: Literal["stop", "skip"] = "stop"
    source_len: Positive = 4096
    target_len: int = 400
    ends: Literal["targets", "short"] = "targets"
    label_smoothing: float = 0.1
    search: Literal["greedy", "beam"] = "greedy"
    min_length: int = 200
    max_length: int = 400
    num_beams: Positive = 4
    length_penalty: float = 1.0
    blocked_ngram: int | None = None
    evaluation_batch_size: Positive = 8

    @property
    def metrics(self) -> tuple[Metric, ...]:
        scored = [Metric(name, "F, percent", True, primary=name in ROUGE) for name in (*ROUGE, *PLAIN_ROUGE)]
        levels = [Metric(level, "right words, percent", higher_is_better=True, primary=False) for level in self._levels]
        return (*scored, *levels)

    @property
    def _levels(self) -> Mapping[str, slice]:
        """The words of a generated summary that are scored separately, if complete summaries fit."""
        return SUM_LEVELS if self.dataset == "synthetic" and self.max_length >= SUMMARY_WORDS else {}

    def check(self) -> None:
        super().check()
        if self.target_len < 2:
            raise UserError(f"task.target_len must be at least 2, got {self.target_len}")
        Limits(self.max_length, min_length=self.min_length, blocked_ngram=self.blocked_ngram)

    @property
    def extra_data(self) -> tuple[str, ...]:
        return tokenizer_data(self.tokenizer)

    def setup(self, data_root: Path | None) -> None:
        tokenizer = tokenizer_path(self.tokenizer, data_root)
        pairs = find_pairs(self.dataset, self.open_source(), data_root, empty=self.empty)
        self.bpe = find_tokenizer(
            tokenizer,
            lambda: chain.from_iterable(pairs.read("train")),
            vocab_size=self.vocab_size,
            special_tokens=SPECIAL_TOKENS,
            key={"pairs": pairs.key, "version": SUM_VERSION},
        )
        lengths = {"source_len": self.source_len, "target_len": self.target_len}
        self.splits = {split: EncodedPairs(pairs, split, self.bpe, **lengths, ends=self.ends) for split in VAL_SPLITS}
        self._key = pairs.key
        numbered = {split: enumerate(each.digests.tolist(), start=1) for split, each in self.splits.items()}
        documents = {split: [(x, f"document {i} of {split}") for i, x in each] for split, each in numbered.items()}
        warn_of_repeats("documents", documents)

    def fingerprint(self) -> dict[str, Any]:
        sizes = {split: len(pairs) for split, pairs in self.splits.items()}
        vocabulary = {} if self.tokenizer is None else {"tokenizer": digest_of(self.bpe.get_vocab())}
        return {"pairs": self._key, "examples": sizes, "vocabulary": vocabulary_size(self.bpe), **vocabulary}

    def backbone_options(self, backbone: str) -> dict[str, Any]:  # noqa: ARG002
        return {"vocab_size": vocabulary_size(self.bpe)}

    def token_loss(self, backbone: Backbone, batch: Batch, *, smoothing: float, reduction: str) -> Tensor:
        """Return the negative log-likelihood of the summaries' tokens, given the documents and the preceding tokens."""
        target, padding = batch["target"], batch["target_padding"]
        target_padding = None if padding is None else padding[:, 1:]
        logits = backbone(batch["source"], target[:, :-1], batch["source_padding"], target_padding)
        options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": reduction}
        targets = target[:, 1:].flatten()
        return F.cross_entropy(logits.flatten(0, 1).float(), targets, ignore_index=self.splits["train"].pad, **options)

    def loss(self, backbone: Backbone, batch: Batch) -> Tensor:
        return self.token_loss(backbone, batch, smoothing=self.label_smoothing, reduction="mean")

    def loss_counts(self, backbone: Backbone, batch: Batch) -> Tensor:  # noqa: ARG002
        return (batch["target"][:, 1:] != self.splits["train"].pad).sum()

    def validate(self, backbone: Backbone, batches: Batches) -> float:
        """Return the mean negative log-likelihood per token, in nats."""

        def score(batch: Batch) -> tuple[float, int]:
            total = self.token_loss(backbone, batch, smoothing=0.0, reduction="sum")
            return total.item(), int(self.loss_counts(backbone, batch))

        return mean_over_batches(batches.map(self.splits["val"], self.evaluation_batch_size, score))

    def summarize(self, backbone: SequenceToSequence, batch: Batch) -> list[str]:
        """Generate the summaries of a batch."""
        begin, end = self.splits["train"].begin, self.splits["train"].end
        limits = Limits(self.max_length, min_length=self.min_length, end=end, blocked_ngram=self.blocked_ngram)
        state = backbone.init_state(batch["source"], batch["source_padding"])
        prompt = torch.full((len(batch["source"]), 1), begin, device=batch["source"].device)
        if self.search == "greedy":
            tokens = greedy(backbone, state, prompt, limits)
        else:
            tokens = beam_search(
                backbone, state, prompt, limits, num_beams=self.num_beams, length_penalty=self.length_penalty
            )
        return [self.bpe.decode([t for t in row if t != end]).strip() for row in tokens.tolist()]

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        test = self.splits[self.test_split]
        summarize = partial(self.summarize, cast(SequenceToSequence, backbone))
        self._summaries = [*chain.from_iterable(batches.map(test, self.evaluation_batch_size, summarize))]
        references = [reference for _, reference in islice(test.read_texts(), self.limit)]
        right = {name: right_words(references, self._summaries, words) for name, words in self._levels.items()}
        return rouge(zip(references, self._summaries, strict=True)) | right

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the scores of the first sentence of each document, and of the summary of other documents."""
        documents, references = zip(*islice(self.splits[self.test_split].read_texts(), self.limit), strict=True)
        others = (*references[1:], references[0])
        return {
            "lead_sentences": rouge(zip(references, map(lead, documents), strict=True)),
            "another_summary": rouge(zip(references, others, strict=True)),
        }

    def save_plots(self, backbone: Backbone, batches: Batches, folder: Path) -> None:  # noqa: ARG002
        """Write the first summaries of the test split with their references."""
        examples = zip(self.splits[self.test_split].read_texts(), self._summaries[:5], strict=False)
        shown = [
            f"--- documents\n{documents[:2000]}\n--- reference\n{reference}\n--- summary\n{summary}"
            for (documents, reference), summary in examples
        ]
        (folder / "summaries.txt").write_text("\n\n".join(shown) + "\n")


def right_words(references: Sequence[str], summaries: Sequence[str], words: slice) -> float:
    """Return the percentage of reference words at the positions ``words`` that the summaries reproduce."""
    pairs = [
        (word, predicted)
        for reference, summary in zip(references, summaries, strict=True)
        for word, predicted in zip_longest(reference.split()[words], summary.split()[words])
        if word is not None
    ]
    return 100 * sum(word == predicted for word, predicted in pairs) / len(pairs)


def lead(documents: str) -> str:
    """Return the first sentence of each document."""
    return " ".join(sentence for text in documents.split(SEPARATOR) for sentence in split_sentences(text)[:1])


ROUGE = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rougeLsum"}
"""Our names and rouge-score's: the published ROUGE-L is that of ROUGE-1.5.5 on texts split into sentences."""
PLAIN_ROUGE = tuple(f"{name}_plain" for name in ROUGE)
"""Scores without stemming."""

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9–])|\n+")


def split_sentences(text: str) -> list[str]:
    """Split after . ! or ? before a capital letter, a digit or a dash, and at line breaks."""
    return [sentence.strip() for sentence in _SENTENCE_END.split(text) if sentence.strip()]


def rouge(pairs: Iterable[tuple[str, str]]) -> dict[str, float]:
    """Return mean F-scores in percent over (reference, summary) pairs, with and without (:data:`PLAIN_ROUGE`) stemming.

    Words are stemmed, as published: pyrouge always passes ``-m`` to ROUGE-1.5.5, whose stemmer is Porter's algorithm
    without NLTK's extensions, which rouge-score has. An empty summary counts as the text ``<empty>``, as published.
    """
    from nltk.stem.porter import PorterStemmer
    from rouge_score.rouge_scorer import RougeScorer
    from rouge_score.tokenize import tokenize

    porter = PorterStemmer(mode=PorterStemmer.ORIGINAL_ALGORITHM)
    scorers = [
        (
            names,
            RougeScorer(list(ROUGE.values()), tokenizer=SimpleNamespace(tokenize=partial(tokenize, stemmer=stemmer))),
        )
        for names, stemmer in ((tuple(ROUGE), porter), (PLAIN_ROUGE, None))
    ]
    rows = []
    for reference, summary in pairs:
        texts = ["\n".join(split_sentences(text)) for text in (reference, summary.strip() or "<empty>")]
        scores = [
            named for names, scorer in scorers for named in zip(names, scorer.score(*texts).values(), strict=True)
        ]
        rows.append({name: 100.0 * score.fmeasure for name, score in scores})
    return mean_scores(rows)
