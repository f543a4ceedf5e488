"""Cells of the language models and of Sum at smoke size, without dropout, and what fairseq is given of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cab import Backbone
from cab.config.compose import compose
from cab.config.run_config import TrainerConfig
from cab.runner.cell import Cell
from cab.runner.engine import make_backbone
from cab.training import after_optimizer_step, auxiliary_loss
from engines.fairseq import environment
from engines.fairseq.command import precision_arguments, training_arguments
from engines.fairseq.data import write_dictionaries, write_dictionary
from engines.torch.optimizer import make_optimizer, make_scheduler
from tasks.corpus.tokens import END, PAD
from tests.helpers.command import ROOT, run

PATTERNS = {"lm": ("gpt2", "CS"), "mlm": ("roberta", "NS"), "sum": ("transformer", "CC")}
STEPS = 10
CPU = torch.device("cpu")


@dataclass
class Ours:
    """A cell, its network, and batches: what the network reads, and targets, with PAD at positions without a target."""

    cell: Cell
    config: TrainerConfig
    backbone: Backbone
    batches: list[tuple[Tensor, ...]]

    @classmethod
    def make(cls, task: str, attention: str, *overrides: str) -> Ours:
        backbone_name, pattern = PATTERNS[task]
        chosen = [f"task={task}", "dataset=synthetic", f"backbone={backbone_name}", f"attention={attention}"]
        chosen += ["preset=smoke", f"pattern={pattern}", "device=cpu", "backbone.dropout=0.0"]
        chosen += ["backbone.attention_dropout=0.0", f"trainer.max_steps={STEPS}", "trainer.max_grad_norm=1.0"]
        chosen += ["trainer.weight_decay=0.01", "trainer.schedule=linear", "trainer.warmup_steps=4", *overrides]
        cell = Cell.from_config(compose(chosen))
        cell.task.setup(None)
        torch.manual_seed(1)
        backbone = make_backbone(cell).eval()
        items: Any = cell.task.splits["train"]
        drawn = [items.__getitems__(list(range(4 * step, 4 * step + 4))) for step in range(STEPS)]
        return cls(cell, cell.config.trainer, backbone, [_read_and_target(cell, batch) for batch in drawn])

    def logits(self) -> Tensor:
        """Of the first batch."""
        with torch.no_grad():
            return self._logits(0)

    def real(self) -> Tensor:
        """The places of the first batch's logits that are not padding."""
        return self.batches[0][-2] != PAD

    def _logits(self, number: int) -> Tensor:
        *inputs, _ = self.batches[number]
        logits: Tensor = self.backbone(*inputs, *map(_padding, inputs))
        return logits

    def loss(self, number: int = 0) -> Tensor:
        """Of a batch, in nats a target."""
        target = self.batches[number][-1].flatten()
        smoothing = getattr(self.cell.task, "label_smoothing", 0.0)
        return F.cross_entropy(self._logits(number).flatten(0, 1), target, ignore_index=PAD, label_smoothing=smoothing)

    def train(self) -> list[float]:
        """Steps on all batches, with the seeds of fairseq's; the loss of the last batch of each, after it."""
        optimizer = make_optimizer(self.backbone, self.config)
        scheduler = make_scheduler(optimizer, self.config, steps_per_epoch=STEPS, start=0)
        pieces = self.config.batch_size // (self.config.micro_batch_size or self.config.batch_size)
        losses = []
        for step in range(STEPS // pieces):
            torch.manual_seed(self.cell.config.seed + step)
            optimizer.zero_grad()
            self.backbone.train()
            for number in range(step * pieces, (step + 1) * pieces):
                with self.cell.config.autocast(CPU):
                    loss = self.loss(number)
                own = auxiliary_loss(self.backbone)
                ((loss if own is None else loss + own) / pieces).backward()
            torch.nn.utils.clip_grad_norm_(self.backbone.parameters(), self.config.max_grad_norm)
            optimizer.step()
            scheduler.step()
            after_optimizer_step(self.backbone)
            self.backbone.eval()
            with torch.no_grad():
                losses.append(float(self.loss(number)))
        return losses

    def arguments(self, folder: Path) -> list[str]:
        """What fairseq is given; ``folder`` receives the dictionary."""
        folder.mkdir(parents=True, exist_ok=True)
        task: Any = self.cell.task
        if self.cell.config.task.name == "sum":
            write_dictionaries(task, folder)
        else:
            write_dictionary(task.corpus, folder / "dict.txt")
        precision = self.cell.config.precision_on(CPU).precision
        rest = [*training_arguments(self.cell), *precision_arguments(precision, "cpu")]
        return [str(folder), "--user-dir", str(environment.PLUGIN), "--cpu", *rest]


def _read_and_target(cell: Cell, batch: Any) -> tuple[Tensor, ...]:
    task: Any = cell.task
    if cell.config.backbone.name == "gpt2":
        return batch[:, :-1], batch[:, 1:]
    if cell.config.backbone.name == "transformer":
        return _pairs(batch["source"], batch["target"])
    seen, places = task.hide(batch, torch.Generator().manual_seed(0))
    target = torch.full_like(batch, PAD)
    target.view(-1)[places] = batch.flatten()[places]
    return seen, target


def _pairs(source: Tensor, target: Tensor) -> tuple[Tensor, ...]:
    """Pairs of different lengths: documents are padded on the left, as in fairseq, and summaries on the right."""
    read, target = target[:, :-1].clone(), target[:, 1:].clone()
    source = source.clone()
    for row in range(1, len(source)):
        source[row, : 3 * row] = PAD
        target[row, -2 * row - 1] = END
        read[row, -2 * row :] = target[row, -2 * row :] = PAD
    return source, read, target


def _padding(seen: Tensor) -> Tensor | None:
    mask = seen == PAD
    return mask if bool(mask.any()) else None


def ask_fairseq(cases: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The answers of fairseq_side.py."""
    torch.save(cases, folder / "cases.pt")
    command = [environment.HOME / "bin" / "python", "-m", "tests.helpers.fairseq.fairseq_side"]
    done = run([*command, "cases.pt", "answers.pt"], folder, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr[-3000:]
    answers: list[dict[str, Any]] = torch.load(folder / "answers.pt")
    return answers
