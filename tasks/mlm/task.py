"""MLM protocol: perplexity of masked tokens.

In generated pages, masked words occur once more, far away: a page states one fact of one token (``annalamp``) per name
in random order, and lists all names with their things (``anna lamp``), which are masked, learned and scored.
docs/reference/tasks.md gives the best possible perplexities.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from cab import Backbone, UserError, register_task
from cab.backbone_protocols import MaskedLM
from cab.metric import Metric, mean_over_batches
from cab.registry.options import Positive
from cab.registry.registries import BACKBONES
from cab.task import Batches
from tasks.bpe import tokenizer_data, tokenizer_path
from tasks.corpus.blocks import PackedLines
from tasks.corpus.books import find_books
from tasks.corpus.facts import ALL_NAMES, CHAPTERS, THINGS, Answers, Facts, Names, level_perplexities, names_variant
from tasks.corpus.losses import mean_or_zero, sum_of, token_losses
from tasks.corpus.tokens import NUM_SPECIAL, PAD, padding_or_none, perplexity, read_corpus, unigram_loss
from tasks.files import SPLITS
from tasks.source import TextTask

MASKED, REPLACED = 0.8, 0.1  # fractions of the chosen tokens; the others are kept (Devlin et al. 2019, section 3.1)

NEAR_SHARE = 0.25
"""Fraction of the names whose fact is repeated in the list."""

MLM_LEVELS = {"near": range(3), "far": range(17, 10_000)}
"""Distance in tokens from an answer to its fact."""


def generate_book(number: int, *, names: int = 16) -> str:
    """Generate book ``number`` of :data:`CHAPTERS` pages about ``names`` people, deterministically."""
    rng = random.Random(f"pages {number}")
    return "".join(_page(rng, sorted(ALL_NAMES[:names])) for _ in range(CHAPTERS))


def _page(rng: random.Random, names: Sequence[str]) -> str:
    keeps = {name: rng.choice(THINGS) for name in rng.sample(names, len(names))}
    told_again = rng.sample(names, round(NEAR_SHARE * len(names)))
    facts = " ".join(name + thing for name, thing in keeps.items())
    entries = (f"{name}{keeps[name] if name in told_again else ''} {keeps[name]}" for name in names)
    return f"Kept {facts}\nListed {' '.join(entries)}\n"


@register_task(
    "mlm", paper="Liu et al. 2019", datasets="pg19 wikitext103 wikitext2 synthetic", backbones={"roberta": "NS"}
)
@dataclass(kw_only=True, eq=False)
class MLM(TextTask):
    """Predict the masked tokens of a page from the others.

    Args:
        dataset: pg19, wikitext103, wikitext2, synthetic or any name, as in task ``lm``.
        tokenizer, vocab_size: as in task ``lm``.
        names: number of names in generated pages; from 1 to 32.
        loss_on: choose among ``all`` tokens, or in generated pages only among the ``answers``.
        block_len: maximum number of tokens per page, packed from whole lines.
        mask_share: fraction of chosen tokens; 80 percent of them become the mask, 10 percent a random token, 10 percent
            are unchanged.
        scored_part: ``test``, or ``validation``, as published, which selects the checkpoint; ``ppl_test`` is then
            reported as well.
        evaluation_batch_size: pages per batch in validation and test.
    """

    packages: ClassVar[Mapping[str, str]] = {"tokenizers": "text"}
    required_protocols: ClassVar = (MaskedLM,)

    source_columns: Sequence[str] = ("text",)
    tokenizer: str | None = None
    vocab_size: int = 50257
    names: Names = 16
    loss_on: Literal["all", "answers"] = "all"
    block_len: Positive = 2048
    mask_share: float = 0.15
    scored_part: Literal["test", "validation"] = "test"
    evaluation_batch_size: Positive = 8

    @property
    def metrics(self) -> tuple[Metric, ...]:
        names = ["ppl", *([] if self.scored_part == "test" else ["ppl_test"])]
        names += [f"ppl_{level}" for level in MLM_LEVELS] if self._asks else []
        return tuple(Metric(name, "per masked token", False, primary=name == "ppl") for name in names)

    @property
    def _asks(self) -> bool:
        """Whether only answers are learned and scored."""
        return self.loss_on == "answers" and self.dataset == "synthetic"

    @property
    def _scored(self) -> str:
        return self.test_split if self.scored_part == "test" else self.scored_part

    def check(self) -> None:
        super().check()
        if not 0.0 < self.mask_share <= 1.0:
            raise UserError(f"task.mask_share must be above 0 and at most 1, got {self.mask_share}")

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
        self.splits = {split: PackedLines(self.corpus, split, self.block_len) for split in SPLITS}

    def fingerprint(self) -> dict[str, Any]:
        return {**self.corpus.key, "dictionary": self.mask + 1, "unknown": self.corpus.unknown}

    @property
    def mask(self) -> int:
        """The entry after the dictionary of LM."""
        return self.corpus.size

    def backbone_options(self, backbone: str) -> dict[str, Any]:
        options = {"vocab_size": self.mask + 1, "max_length": self.block_len}
        return {name: value for name, value in options.items() if name in BACKBONES.get(backbone).options}

    def hide(self, tokens: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return the page as the network reads it [B, N], and the indices to predict [K] in the flattened page.

        A fraction ``mask_share`` of each row's tokens is chosen, rounded up or down at random so that it is right on
        average, but at least one. If only answers are scored, it is a fraction of the answers.
        """
        draw = torch.rand(2, *tokens.shape, generator=generator)
        rounding = torch.rand(len(tokens), 1, generator=generator)
        random_tokens = torch.randint(NUM_SPECIAL, len(self.corpus.counts), tokens.shape, generator=generator)
        real = tokens != PAD if self._facts is None else self._facts.is_answer[tokens]
        count = (self.mask_share * real.sum(dim=1, keepdim=True) + rounding).floor().clamp(min=1.0)
        order = draw[0].masked_fill(~real, 2.0).argsort(dim=1)
        chosen = real & torch.empty_like(real).scatter_(1, order, torch.arange(tokens.shape[1]) < count)
        seen = torch.where(chosen & (draw[1] < MASKED), self.mask, tokens)
        seen = torch.where(chosen & (draw[1] >= 1.0 - REPLACED), random_tokens, seen)
        return seen, chosen.flatten().nonzero().squeeze(1)

    @property
    def training_set(self) -> RandomPages:
        return RandomPages(self.splits["train"], self.hide)

    def hidden_loss(self, backbone: Backbone, batch: Batch) -> Tensor:
        """Return the negative log-likelihood of each chosen token, in nats [K]."""
        targets = batch.tokens.flatten()[batch.places]
        return token_losses(backbone, self.mask + 1, targets, batch.seen, batch.padding, selected=batch.places)

    def loss(self, backbone: Backbone, batch: Batch) -> Tensor:
        return mean_or_zero(self.hidden_loss(backbone, batch))

    def loss_counts(self, backbone: Backbone, batch: Batch) -> Tensor:  # noqa: ARG002
        return torch.tensor(len(batch.places))

    def mean_loss(self, backbone: Backbone, batches: Batches, split: str) -> float:
        """Return the mean loss over the chosen tokens of a split; the choice is fixed."""

        def score(batch: Batch) -> tuple[float, int]:
            return sum_of(self.hidden_loss(backbone, batch))

        return mean_over_batches(batches.map(self._hidden(split), self.evaluation_batch_size, score))

    def _hidden(self, split: str) -> HiddenPages:
        return HiddenPages(RandomPages(self.splits[split], self.hide), self.evaluation_batch_size)

    def validate(self, backbone: Backbone, batches: Batches) -> float:
        return self.mean_loss(backbone, batches, "validation")

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        scores = {"ppl": perplexity(self.mean_loss(backbone, batches, self._scored))}
        if self.scored_part == "validation":
            scores["ppl_test"] = perplexity(self.mean_loss(backbone, batches, self.test_split))
        return scores if self._facts is None else self._level_scores(self._facts, backbone, batches) | scores

    def _level_scores(self, facts: Facts, backbone: Backbone, batches: Batches) -> dict[str, float]:
        def score(batch: Batch) -> Answers:
            tokens, seen, places, _ = batch
            losses = torch.full(tokens.shape, torch.nan, device=tokens.device).flatten()
            chosen = token_losses(backbone, self.mask + 1, tokens.flatten()[places], seen, selected=places)
            return facts.answers(tokens, losses.index_copy(0, places, chosen).view_as(tokens))

        rows = batches.map(self._hidden(self.test_split), self.evaluation_batch_size, score)
        return level_perplexities([*chain.from_iterable(rows)], MLM_LEVELS)

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return unigram perplexities, or in generated pages those of lookup within windows."""
        if self._facts is not None:
            pages = self.splits[self._scored]
            texts = [pages.__getitems__([i])[0] for i in range(len(pages))]
            windows = (0, 4, self.block_len)
            return {f"look_up_{n}": level_perplexities(self._facts.looked_up(texts, n), MLM_LEVELS) for n in windows}
        scores = {"ppl": perplexity(unigram_loss(self.corpus, self._scored))}
        if self.scored_part == "validation":
            scores["ppl_test"] = perplexity(unigram_loss(self.corpus, self.test_split))
        return {"unigram": scores}

    def save_plots(self, backbone: Backbone, batches: Batches, folder: Path) -> None:
        """Write pages of the test split with the chosen tokens as [truth|prediction]."""
        pages = HiddenPages(RandomPages(self.splits[self.test_split], self.hide), 2)
        tokens, seen, places, padding = batches.first(pages, 2)
        guesses = backbone(seen, padding, selected=places).argmax(dim=-1)
        words = [self.corpus.text([token]) for token in tokens.flatten().tolist()]
        for place, guess in zip(places.tolist(), guesses.tolist(), strict=True):
            words[place] = f"[{words[place]}|{self.corpus.text([guess])}]"
        note = "Masked tokens are shown as [truth|prediction].\n\n"
        (folder / "masked.txt").write_text(note + "".join(words) + "\n")


class Batch(NamedTuple):
    """Pages of which some tokens are masked.

    Attributes:
        tokens: [B, N].
        seen: what the network reads, [B, N].
        places: indices of the tokens to predict in the flattened pages, [K].
        padding: [B, N]; None without padding.
    """

    tokens: Tensor
    seen: Tensor
    places: Tensor
    padding: Tensor | None


class RandomPages(Dataset[Batch]):
    """Pages for training: each reading chooses other tokens.

    Args:
        hide: returns what the network reads of pages [B, N], and the indices to predict, with a random generator or
            with torch's random numbers.
    """

    def __init__(
        self, pages: PackedLines, hide: Callable[[Tensor, torch.Generator | None], tuple[Tensor, Tensor]]
    ) -> None:
        self.pages, self._hide = pages, hide

    def __len__(self) -> int:
        return len(self.pages)

    def __getitems__(self, indices: Sequence[int], generator: torch.Generator | None = None) -> Batch:
        tokens = self.pages.__getitems__(list(indices))
        return Batch(tokens, *self._hide(tokens, generator), padding_or_none(tokens))


class HiddenPages(Dataset[Batch]):
    """Pages that are read in batches of ``batch_size``, with a fixed choice of masked tokens.

    The choices of all batches are drawn one after another, in order, so they depend on ``batch_size``.

    """

    def __init__(self, pages: RandomPages, batch_size: int) -> None:
        self.pages, self.batch_size = pages, batch_size
        self._states = [torch.Generator().manual_seed(0).get_state()]

    def __len__(self) -> int:
        return len(self.pages)

    def __getitems__(self, indices: list[int]) -> Batch:
        number = indices[0] // self.batch_size
        while len(self._states) <= number:
            start = (len(self._states) - 1) * self.batch_size
            self._read(range(start, start + self.batch_size))
        return self._read(indices)

    def _read(self, indices: Sequence[int]) -> Batch:
        """Return a batch, and keep the state of the generator after it."""
        number = indices[0] // self.batch_size
        generator = torch.Generator()
        generator.set_state(self._states[number])
        batch = self.pages.__getitems__(indices, generator)
        self._states[number + 1 :] = [generator.get_state()]
        return batch
