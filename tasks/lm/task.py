"""LM protocol: perplexity of held-out books, and its dependence on the context length.

Generated books have long-range questions, whose answers are one token that occurs once, anywhere before: a chapter
states one fact of one token (``annalamp``) per name in random order, and asks 48 questions with answers
(``anna lamp``), 12 of them after repeating the fact. docs/reference/tasks.md gives the best possible perplexities.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset, Subset

from backbones.generation import Limits, sample
from cab import Backbone, UserError, register_task
from cab.backbone_protocols import TokenLM
from cab.metric import Metric, mean_over_batches, total_of
from cab.registry.options import Positive
from cab.task import Batches
from cab.training import on_device_of
from tasks.bpe import tokenizer_data, tokenizer_path
from tasks.corpus.blocks import Blocks, Scored, ScoredBlocks
from tasks.corpus.books import WIKITEXTS, find_books
from tasks.corpus.facts import ALL_NAMES, CHAPTERS, THINGS, Answers, Facts, Names, level_perplexities, names_variant
from tasks.corpus.losses import OTHER_PPL, REPEATED_PPL, mean_or_zero, repeat_sums, sum_of, token_losses
from tasks.corpus.tokens import PAD, perplexity, read_corpus, unigram_loss
from tasks.means import masked_mean
from tasks.source import TextTask

log = logging.getLogger(__name__)

NUM_NEAR, NUM_OTHERS = 12, 36

LM_LEVELS = {"near": range(5), "far": range(41, 10_000)}
"""Distance in tokens from an answer to its last occurrence."""


def generate_book(number: int, *, names: int = 16) -> str:
    """Generate book ``number`` about ``names`` people, deterministically."""
    rng = random.Random(f"book {number}")
    return "".join(_chapter(rng, ALL_NAMES[:names]) for _ in range(CHAPTERS))


def _chapter(rng: random.Random, names: Sequence[str]) -> str:
    keeps = {name: rng.choice(THINGS) for name in rng.sample(names, len(names))}
    facts = " ".join(name + thing for name, thing in keeps.items())
    questions = []
    for told_again in rng.sample([True] * NUM_NEAR + [False] * NUM_OTHERS, NUM_NEAR + NUM_OTHERS):
        name = rng.choice(names)
        fact = f"{name}{keeps[name]} " if told_again else ""
        questions.append(f"{fact}{name} {keeps[name]}")
    return f"Kept {facts}\nAsked {' '.join(questions)}\n"


@register_task(
    "lm", paper="Radford et al. 2019", datasets="pg19 wikitext103 wikitext2 synthetic", backbones={"gpt2": "CS"}
)
@dataclass(kw_only=True, eq=False)
class LM(TextTask):
    """Predict each token of a book from the preceding ones.

    Args:
        dataset: pg19 (folders in its layout), wikitext103 or wikitext2 (three files each), synthetic, or any name with
            ``source``.
        tokenizer: ``gpt2``, GPT-2's, as published; ``words``: each word of the training split is a token; a
            tokenizer.json, or a folder with one or with vocab.json and merges.txt; by default, a byte-level BPE of
            ``vocab_size`` entries is trained on the training split.
        vocab_size: size of the trained tokenizer.
        names: number of names in generated books, each with one fact per chapter; from 1 to 32.
        loss_on: learn and score ``all`` tokens, or in generated books only the ``answers``.
        block_len: tokens per training block.
        overlap: context tokens of a second evaluation of the test split, in overlapping blocks of ``block_len``:
            ``word_ppl_overlap``, as in fairseq's ``--context-window``; 0 for none.
        evaluation_batch_size: blocks per batch in validation and test.
        context_lengths: additional block lengths for evaluation, shorter or longer than ``block_len`` (Figure 3c of the
            paper).
        context_tokens: number of test tokens scored at each length; null: all.
        sample_tokens: tokens per generated sample text; with its prompt, at most ``block_len``.
    """

    packages: ClassVar[Mapping[str, str]] = {"tokenizers": "text"}
    required_protocols: ClassVar = (TokenLM,)
    repeat_metrics: ClassVar[tuple[str, ...]] = (REPEATED_PPL, OTHER_PPL)

    source_columns: Sequence[str] = ("text",)
    tokenizer: str | None = None
    vocab_size: int = 50257
    names: Names = 16
    loss_on: Literal["all", "answers"] = "all"
    block_len: Positive = 8192
    overlap: int = 0
    evaluation_batch_size: Positive = 1
    context_lengths: Sequence[Positive] = (256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
    context_tokens: int | None = None
    sample_tokens: Positive = 100

    @property
    def metrics(self) -> tuple[Metric, ...]:
        names = [f"ppl_{level}" for level in LM_LEVELS]
        if not self._asks:
            names = ["word_ppl", *self._word_perplexities, *self.repeat_metrics]
        lengths = {**dict.fromkeys(names), **{f"ppl_{length}": length for length in self.context_lengths}}
        further = [
            Metric(name, f"per {'word' if 'word' in name else 'token'}", False, primary=False, at_length=length)
            for name, length in lengths.items()
        ]
        return Metric("ppl", "per token", higher_is_better=False), *further

    @property
    def _asks(self) -> bool:
        """Whether only answers are learned and scored."""
        return self.loss_on == "answers" and self.dataset == "synthetic"

    @property
    def _word_perplexities(self) -> list[str]:
        """Names of the additional perplexities per word that are published for WikiText."""
        names = ["word_ppl_validation"] if self.dataset in WIKITEXTS else []
        return [*names, "word_ppl_overlap"] if self.overlap else names

    def check(self) -> None:
        super().check()
        if self.overlap >= self.block_len:
            raise UserError(f"task.overlap must be from 0 to below task.block_len {self.block_len}, got {self.overlap}")

    @property
    def config_variant(self) -> str:
        return names_variant(self.dataset, self.names)

    @property
    def extra_data(self) -> tuple[str, ...]:
        return tokenizer_data(self.tokenizer)

    def setup(self, data_root: Path | None) -> None:
        tokenizer = tokenizer_path(self.tokenizer, data_root)
        books = find_books(
            self.dataset, self.open_source(), data_root, generate=partial(generate_book, names=self.names)
        )
        self.corpus = read_corpus(books, tokenizer=tokenizer, vocab_size=self.vocab_size)
        self._facts = Facts.of(self.corpus) if self._asks else None
        self.splits = {"train": Blocks(self.corpus, "train", self.block_len, whole=True)}

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer for Hugging Face's ``AutoTokenizer``; `cab export` calls it."""
        self.corpus.save_tokenizer(folder, max_length=self.context)

    @property
    def split_names(self) -> Sequence[str]:
        return [*self.corpus.files]

    @property
    def training_set(self) -> Dataset[Any]:
        blocks = self.splits["train"]
        return blocks if self._facts is None else ScoredBlocks(blocks, self.is_scored)

    @property
    def context(self) -> int:
        """Number of tokens that training reads at once."""
        return self.block_len

    def fingerprint(self) -> dict[str, Any]:
        return {**self.corpus.key, "dictionary": self.corpus.size, "unknown": self.corpus.unknown}

    def backbone_options(self, backbone: str) -> dict[str, Any]:  # noqa: ARG002
        return {"vocab_size": self.corpus.size}

    def loss(self, backbone: Backbone, batch: Any) -> Tensor:
        """Return the mean negative log-likelihood in nats per scored token."""
        if isinstance(batch, Scored):
            return mean_or_zero(self.losses_at(backbone, *batch))
        return masked_mean(self.token_losses(backbone, batch), self.is_scored(batch[:, 1:]))

    def loss_counts(self, backbone: Backbone, batch: Tensor | Scored) -> Tensor:  # noqa: ARG002
        if isinstance(batch, Scored):
            return torch.tensor(len(batch.places))
        return self.is_scored(batch[:, 1:]).sum()

    def scored_losses(self, backbone: Backbone, batch: Tensor) -> Tensor:
        """Return the losses of the scored tokens of blocks [B, N + 1], in order [K]."""
        scored = self.is_scored(batch[:, 1:])
        if self._facts is None:
            return self.token_losses(backbone, batch)[scored]
        return self.losses_at(backbone, batch, scored.flatten().nonzero().squeeze(1))

    def losses_at(self, backbone: Backbone, blocks: Tensor, places: Tensor) -> Tensor:
        """Return the losses at ``places`` [K] of the flattened tokens [B, N] but the first, without other logits."""
        targets = blocks[:, 1:].flatten()[places]
        return token_losses(backbone, self.corpus.size, targets, blocks[:, :-1], selected=places)

    def token_losses(self, backbone: Backbone, batch: Tensor) -> Tensor:
        """Return the loss of each token but the first, [B, N], see :func:`tasks.corpus.losses.token_losses`."""
        return token_losses(backbone, self.corpus.size, batch[:, 1:], batch[:, :-1])

    def is_scored(self, tokens: Tensor) -> Tensor:
        if self._facts is None:
            return tokens != PAD
        return on_device_of(tokens, self._facts.is_answer)[tokens]

    def map_blocks(
        self, score: Callable[[Tensor], Any], batches: Batches, split: str, length: int, **options: Any
    ) -> list[Any]:
        """Return the score of each block, or batch of blocks, [B, N + 1] of a split; a shorter last block is alone."""

        def score_batch(batch: Tensor | list[Tensor]) -> list[Any]:
            return [score(rows) for rows in ([batch] if isinstance(batch, Tensor) else [row[None] for row in batch])]

        blocks = Blocks(self.corpus, split, length, **options)
        return [*chain.from_iterable(batches.map(blocks, self.evaluation_batch_size, score_batch))]

    def mean_loss(
        self, backbone: Backbone, batches: Batches, split: str, length: int, limit: int | None = None
    ) -> float:
        """Return the mean loss of the scored tokens of a split, in blocks of ``length`` without overlap."""

        def score(rows: Tensor) -> tuple[float, int]:
            return sum_of(self.scored_losses(backbone, rows))

        return mean_over_batches(self.map_blocks(score, batches, split, length, limit=limit))

    def overlapping_loss(self, backbone: Backbone, batches: Batches, split: str) -> float:
        """Return the mean loss of a split, with ``overlap`` or more context tokens except in the first block."""

        def score(repeated: int, batch: Tensor | list[Tensor]) -> list[tuple[float, int]]:
            return [sum_of(self.token_losses(backbone, tokens[None])[0, repeated:]) for tokens in batch]

        blocks, sums = Blocks(self.corpus, split, self.block_len, overlap=self.overlap), []
        for repeated, chosen in ((0, range(1)), (self.overlap, range(1, len(blocks)))):
            sums += batches.map(Subset(blocks, chosen), self.evaluation_batch_size, partial(score, repeated))
        return mean_over_batches(chain.from_iterable(sums))

    def validate(self, backbone: Backbone, batches: Batches) -> float:
        return self.mean_loss(backbone, batches, "validation", self.context)

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        if self._facts is not None:
            ppl = perplexity(self.mean_loss(backbone, batches, self.test_split, self.context))
            answers = self.answers(self._facts, backbone, batches)
            scores = level_perplexities(answers, LM_LEVELS) | {"ppl": ppl}
        else:
            scores = self._test_perplexities(backbone, batches)
        for length in self.context_lengths:
            try:
                mean = self.mean_loss(backbone, batches, self.test_split, length, self.context_tokens)
            except (UserError, torch.OutOfMemoryError) as error:  # an additional length must not cost the main score
                log.warning("perplexity at context length %d failed: %s", length, error)
                mean = math.nan
            scores[f"ppl_{length}"] = perplexity(mean)
        return scores

    def _test_perplexities(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        """Return the perplexities per token, and per word: with as many tokens per word as in the whole split."""
        scores = {}
        if self.repeat_metrics:
            groups = self._repeat_sums(backbone, batches)
            mean = mean_over_batches(groups.values())
            scores = {name: perplexity(mean_over_batches([group])) for name, group in groups.items()}
        else:
            mean = self.mean_loss(backbone, batches, self.test_split, self.context)
        scores |= {"ppl": perplexity(mean), "word_ppl": self._per_word(mean, self.test_split)}
        if "word_ppl_validation" in self._word_perplexities:
            mean = self.mean_loss(backbone, batches, "validation", self.context)
            scores["word_ppl_validation"] = self._per_word(mean, "validation")
        if self.overlap:
            scores["word_ppl_overlap"] = self._per_word(
                self.overlapping_loss(backbone, batches, self.test_split), self.test_split
            )
        return scores

    def _per_word(self, mean: float, split: str) -> float:
        return perplexity(mean * len(self.corpus.files[split]) / self.corpus.words[split])

    def _repeat_sums(self, backbone: Backbone, batches: Batches) -> dict[str, tuple[float, int]]:
        """Return the summed loss and the number of test tokens that end a repeated bigram, and of all others."""

        def score(rows: Tensor) -> dict[str, tuple[float, int]]:
            return repeat_sums(rows, self.token_losses(backbone, rows))

        rows = self.map_blocks(score, batches, self.test_split, self.block_len)
        return {name: total_of(row[name] for row in rows) for name in self.repeat_metrics}

    def answers(self, facts: Facts, backbone: Backbone, batches: Batches) -> Answers:
        """Return the answers of the test split."""

        def score(rows: Tensor) -> Answers:
            return facts.answers(rows, F.pad(self.token_losses(backbone, rows), (1, 0)))

        return [*chain.from_iterable(self.map_blocks(score, batches, self.test_split, self.block_len, whole=True))]

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return unigram perplexities, or in generated books those of ideal lookup within windows."""
        if self._facts is not None:
            windows, texts = dict.fromkeys((0, 4, 16, self.block_len, self.context)), [*self.test_texts()]
            return {f"look_up_{n}": level_perplexities(self._facts.looked_up(texts, n), LM_LEVELS) for n in windows}
        mean = unigram_loss(self.corpus, self.test_split)
        return {"unigram": {"ppl": perplexity(mean), "word_ppl": self._per_word(mean, self.test_split)}}

    def test_texts(self) -> Iterable[Tensor]:
        """Return the test texts as the network reads them."""
        blocks = Blocks(self.corpus, self.test_split, self.block_len, whole=True)
        return (blocks[i] for i in range(len(blocks)))

    def save_plots(self, backbone: Backbone, batches: Batches, folder: Path) -> None:
        network = cast(TokenLM, backbone)
        length = max(1, min(64, self.block_len // 2))  # a text as long as a training block, for fixed-size attentions
        prompts = batches.first(Blocks(self.corpus, self.test_split, length, whole=True), 2)
        generator = torch.Generator(device=prompts.device).manual_seed(1)
        limits = Limits(max_length=max(1, min(self.sample_tokens, self.block_len - length)))
        texts = sample(network, network.init_state(len(prompts)), prompts, limits, top_p=0.9, generator=generator)
        pairs = zip(*([self.corpus.text(row) for row in rows.tolist()] for rows in (prompts, texts)), strict=True)
        shown = "\n\n".join(f"--- prompt\n{prompt}\n--- continued\n{text}" for prompt, text in pairs)
        (folder / "samples.txt").write_text(shown + "\n")
