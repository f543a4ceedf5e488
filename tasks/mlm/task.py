"""MLM protocol: perplexity of masked tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from cab import Backbone, Task, UserError, register_task
from cab.backbone_protocols import MaskedLM
from cab.registry.options import Positive
from cab.task import Batches, Metric
from tasks.corpus.blocks import PackedLines
from tasks.corpus.books import SyntheticBooks, find_books
from tasks.corpus.facts import Facts, FactScores, Names, names_variant
from tasks.corpus.losses import token_losses
from tasks.corpus.tokens import NUM_SPECIAL, PAD, perplexity, read_corpus, unigram_loss
from tasks.mlm.synthetic import LEVELS, generate_book

MASKED, REPLACED, KEPT = 0.8, 0.1, 0.1  # fractions of the chosen tokens (Devlin et al. 2019, section 3.1)


@register_task(
    "mlm", paper="Liu et al. 2019", datasets="pg19 wikitext103 wikitext2 synthetic", backbones={"roberta": "NS"}
)
class MLM(Task):
    """Predict the masked tokens of a page from the others.

    Args:
        dataset: pg19, wikitext103, wikitext2 or synthetic, as in task ``lm``.
        source, tokenizer, vocab_size: as in task ``lm``.
        names: number of names in generated pages; from 1 to 32.
        loss_on: choose among ``all`` tokens, or in generated pages only among the ``answers``.
        block_len: maximum number of tokens per page, packed from whole lines.
        mask_share: fraction of chosen tokens; 80 percent of them become the mask, 10 percent a random token, 10 percent
            are unchanged.
        scored_part: ``test``, or ``validation`` as published: ``ppl`` is then of the part that selected the checkpoint,
            and ``ppl_test`` is reported as well.
        evaluation_batch_size: pages per batch in validation and test.
    """

    packages: ClassVar[Mapping[str, str]] = {"tokenizers": "text"}
    required_protocols: ClassVar = (MaskedLM,)

    def __init__(
        self,
        *,
        dataset: str,
        source: str | None = None,
        tokenizer: str | None = None,
        vocab_size: int = 50257,
        names: Names = 16,
        loss_on: Literal["all", "answers"] = "all",
        block_len: Positive = 2048,
        mask_share: float = 0.15,
        scored_part: Literal["test", "validation"] = "test",
        evaluation_batch_size: Positive = 8,
    ) -> None:
        self.dataset, self.source, self.tokenizer = dataset, source, tokenizer
        self.vocab_size, self.names, self.loss_on, self.block_len = vocab_size, names, loss_on, block_len
        self.mask_share, self.scored_part = mask_share, scored_part
        self.evaluation_batch_size = evaluation_batch_size

    @property
    def metrics(self) -> tuple[Metric, ...]:
        beside = [] if self.scored_part == "test" else ["ppl_test"]
        beside += [f"ppl_{level}" for level in LEVELS] if self._asks else []
        names = {"ppl": True, **dict.fromkeys(beside, False)}
        return tuple(
            Metric(name, "per masked token", higher_is_better=False, primary=primary) for name, primary in names.items()
        )

    @property
    def _asks(self) -> bool:
        """Return whether only answers are learned and scored."""
        return self.loss_on == "answers" and self.dataset == "synthetic"

    def check(self) -> None:
        if not 0.0 < self.mask_share <= 1.0:
            raise UserError(f"task.mask_share must be above 0 and at most 1, got {self.mask_share}")

    @property
    def config_variant(self) -> str:
        return names_variant(self.dataset, self.names)

    def setup(self, data_root: Path | None) -> None:
        books = find_books(
            self.dataset, self.source, data_root, synthetic=SyntheticBooks(partial(generate_book, names=self.names))
        )
        self.corpus = read_corpus(books, tokenizer=self.tokenizer, vocab_size=self.vocab_size)
        self._facts = Facts.of(self.corpus) if self._asks else None
        self.parts = {part: PackedLines(self.corpus, part, self.block_len) for part in ("train", "validation", "test")}

    def fingerprint(self) -> dict[str, Any]:
        return {**self.corpus.key, "dictionary": self.mask + 1, "unknown": self.corpus.unknown}

    @property
    def mask(self) -> int:
        """Return the entry after the dictionary of LM."""
        return self.corpus.size

    def backbone_options(self, backbone: str) -> dict[str, Any]:  # noqa: ARG002
        return {"vocab_size": self.mask + 1, "max_length": self.block_len}

    @property
    def training_set(self) -> PackedLines:
        return self.parts["train"]

    def hide(self, tokens: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return the page as the network reads it [B, N], and the indices to predict [K] in the flattened page.

        A fraction ``mask_share`` of each row's tokens is chosen, rounded up or down at random so that it is right on
        average, but at least one. If only answers are scored, it is a fraction of the answers.
        """
        draw = torch.rand(2, *tokens.shape, generator=generator)
        rounding = torch.rand(len(tokens), 1, generator=generator)
        random_tokens = torch.randint(NUM_SPECIAL, len(self.corpus.counts), tokens.shape, generator=generator)
        draw, rounding, random_tokens = (x.to(tokens.device) for x in (draw, rounding, random_tokens))
        real = tokens != PAD if self._facts is None else self._facts.is_answer.to(tokens.device)[tokens]
        wanted = (self.mask_share * real.sum(dim=1, keepdim=True) + rounding).floor().clamp(min=1.0)
        rank = draw[0].masked_fill(~real, 2.0).argsort(dim=1).argsort(dim=1)
        chosen = (rank < wanted) & real
        seen = torch.where(chosen & (draw[1] < MASKED), self.mask, tokens)
        seen = torch.where(chosen & (draw[1] >= 1.0 - REPLACED), random_tokens, seen)
        return seen, chosen.flatten().nonzero().squeeze(1)

    def masked_loss(self, backbone: Backbone, tokens: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the negative log-likelihood of each chosen token, in nats [K]."""
        seen, places = self.hide(tokens, generator)
        padding = tokens == PAD
        mask = padding if bool(padding.any()) else None
        return token_losses(backbone, self.mask + 1, tokens.flatten()[places], seen, mask, selected=places)

    def loss(self, backbone: Backbone, batch: Tensor) -> Tensor:
        return self.masked_loss(backbone, batch).mean()

    def mean_loss(self, backbone: Backbone, batches: Batches, part: str) -> float:
        """Return the mean loss over the chosen tokens of a part; the choice is fixed."""
        generator = torch.Generator().manual_seed(0)
        total, count = 0.0, 0
        for batch in batches(self.parts[part], self.evaluation_batch_size):
            losses = self.masked_loss(backbone, batch, generator)
            total += losses.double().sum().item()
            count += losses.numel()
        return total / count

    def validate(self, backbone: Backbone, batches: Batches) -> float:
        return self.mean_loss(backbone, batches, "validation")

    def evaluate(self, backbone: Backbone, batches: Batches) -> dict[str, float]:
        test = perplexity(self.mean_loss(backbone, batches, "test"))
        levels = {} if self._facts is None else self._level_scores(self._facts, backbone, batches)
        if self.scored_part == "test":
            return {"ppl": test, **levels}
        return {"ppl": perplexity(self.mean_loss(backbone, batches, "validation")), "ppl_test": test, **levels}

    def _level_scores(self, facts: Facts, backbone: Backbone, batches: Batches) -> dict[str, float]:
        """Return the perplexity of the test part's chosen answers by distance to their facts."""
        generator = torch.Generator().manual_seed(0)
        scores = FactScores(facts, LEVELS)
        for batch in batches(self.parts["test"], self.evaluation_batch_size):
            seen, places = self.hide(batch, generator)
            losses = torch.full(batch.shape, torch.nan, device=batch.device).flatten()
            chosen = token_losses(backbone, self.mask + 1, batch.flatten()[places], seen, selected=places)
            scores.add(batch, losses.index_copy(0, places, chosen).view_as(batch))
        return scores.perplexities()

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return unigram perplexities of the scored part, and in generated pages those of lookup within windows."""
        if self._facts is not None:
            return {f"look_up_{window}": self._looked_up(self._facts, window) for window in (0, 4, self.block_len)}
        scores = {"ppl": perplexity(unigram_loss(self.corpus, self.scored_part))}
        if self.scored_part == "validation":
            scores["ppl_test"] = perplexity(unigram_loss(self.corpus, "test"))
        return {"unigram": scores}

    def _looked_up(self, facts: Facts, window: int) -> dict[str, float]:
        scores = FactScores(facts, LEVELS)
        for i in range(len(self.parts[self.scored_part])):
            scores.add_look_up(self.parts[self.scored_part].__getitems__([i])[0], window)
        return {"ppl": perplexity(scores.mean), **scores.perplexities()}

    def save_plots(self, backbone: Backbone, batches: Batches, folder: Path) -> None:
        """Write pages of the test part with the chosen tokens as [truth|prediction]."""
        tokens = next(batches(self.parts["test"], 2))
        seen, places = self.hide(tokens, torch.Generator().manual_seed(0))
        padding = tokens == PAD
        guesses = backbone(seen, padding if bool(padding.any()) else None, selected=places).argmax(dim=-1)
        guessed = dict(zip(places.tolist(), guesses.tolist(), strict=True))
        words = []
        for place, token in enumerate(tokens.flatten().tolist()):
            text = self.corpus.text([token])
            words.append(f"[{text}|{self.corpus.text([guessed[place]])}]" if place in guessed else text)
        note = "Masked tokens are shown as [truth|prediction].\n\n"
        (folder / "masked.txt").write_text(note + "".join(words) + "\n")
