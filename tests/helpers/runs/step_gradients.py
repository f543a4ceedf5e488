"""The loss and gradients of one training step of every task, however its batch is divided; also run by torchrun.

Two processes also train networks whose parameters are not all used.
"""

import dataclasses
import functools
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cab.config.compose import compose
from cab.errors import UserError
from cab.runner.batches import Shares, StepBatches
from cab.runner.cell import Cell
from cab.runner.engine import make_initial_backbone
from cab.runner.processes import Processes, find_processes
from engines.torch.loop import Objective, micro_batches
from engines.torch.parallel import Distributed, SingleProcess
from engines.torch.recurrent_memory import RecurrentMemory
from tasks.tts.data import Utterance
from tests.helpers.tasks.records import FEW_CLIPS, few_examples

SIZE = 6
ANSWERS = ["task.loss_on=answers", "task.block_len=9", "task.vocab_size=800"]
CELLS = {
    "glue": ["dataset=synthetic", "pattern=NS"],
    "lm": ["dataset=synthetic", "pattern=CS", *ANSWERS],
    "lm_recurrent": ["dataset=synthetic", "pattern=CS", *ANSWERS],
    "lra": ["dataset=listops_synthetic", "pattern=NS"],
    "lstf": ["dataset=synthetic", "pattern=NC", "backbone=informer"],
    "mlm": ["dataset=synthetic", "pattern=NS", "backbone=roberta"],
    "pcc": ["dataset=synthetic", "pattern=NS"],
    "probe": ["dataset=addition", "pattern=CS"],
    "sr": ["dataset=synthetic", "pattern=NS"],
    "sum": ["dataset=multi_news", "pattern=NS", "task.vocab_size=300", "task.source_len=64", "task.target_len=64"],
    "tts fastspeech2": ["dataset=synthetic", "backbone=fastspeech2", "pattern=NS", *FEW_CLIPS],
    "tts transformer_tts": [
        *("dataset=synthetic", "backbone=transformer_tts", "pattern=CS", "task.num_prompt_steps=2"),
        *("backbone.prenet_dropout=0", *FEW_CLIPS),
    ],
}
UNEVEN = {"lm", "lm_recurrent", "mlm", "probe", "sum", "tts fastspeech2", "tts transformer_tts"}
"""Tasks whose examples have different numbers of values in the loss."""


def write_pairs(folder: Path) -> None:
    """Write summaries of very different lengths."""
    draw, words = random.Random(0), [f"w{i}" for i in range(40)]
    (folder / "multi_news").mkdir(parents=True)
    for part in ("train", "val", "test"):
        sources = [" ".join(draw.choices(words, k=30)) for _ in range(SIZE)]
        targets = [" ".join(draw.choices(words, k=2 + 7 * i)) for i in range(SIZE)]
        (folder / "multi_news" / f"{part}.src.cleaned").write_text("\n".join(sources) + "\n")
        (folder / "multi_news" / f"{part}.tgt").write_text("\n".join(targets) + "\n")


def cut(utterance: Utterance, count: int) -> Utterance:
    """Return the first ``count`` tokens of an utterance."""
    durations, frames = utterance.durations[:count], sum(utterance.durations[:count])
    features = {name: getattr(utterance, name)[:frames] for name in ("mel", "pitch", "energy")}
    return dataclasses.replace(utterance, aligned=utterance.aligned[:count], durations=durations, **features)


def without_draws(task: Any) -> None:
    """Replace the random numbers of the loss with functions of each example, and cut generated speech to lengths."""
    if hasattr(task, "hide"):

        def hide(tokens: Tensor, _generator: object = None) -> tuple[Tensor, Tensor]:
            chosen = (tokens % (2 + tokens[:, :1] % 7) == 0) & (tokens > 3)
            return torch.where(chosen, task.mask, tokens), chosen.flatten().nonzero().squeeze(1)

        task.hide = hide
    if hasattr(task, "scale"):
        train = task.splits["train"]
        train.utterances = [cut(utterance, 4 + i % 7) for i, utterance in enumerate(train.utterances)]
    if hasattr(task, "diffusion"):
        task.diffusion.noisy = lambda image, **_: (0.8 * image + 0.6, image.flip(-1), image[:, 0, 0, 0].abs())


@functools.cache
def ready(name: str, folder: Path) -> Cell:
    task_name = name.partition(" ")[0]
    cell = Cell.from_config(compose([f"task={task_name}", "attention=vanilla", "preset=smoke", *CELLS[name]]))
    cell.task.setup(folder)
    without_draws(cell.task)
    return cell


def measure(name: str, micro_batch_size: int | None, processes: Processes, folder: Path) -> list[float]:
    """Return the loss of a step and the norm of the gradient of each weight."""
    cell = ready(name, folder)
    task: Any = cell.task
    network = make_initial_backbone(cell).eval()  # no dropout, and no statistics of the batch
    shares = Shares.cut(
        num_items=SIZE, batch_size=SIZE, micro_batch_size=micro_batch_size, rank=processes.rank,
        num_processes=processes.count,
    )  # fmt: skip
    order = StepBatches(num_items=SIZE, shares=shares, num_steps=1, seed=1, in_rows=task.recurrent)
    examples = task.splits["val"] if name == "pcc" else task.training_set  # those of training are mirrored
    batches = ((draw.number, examples.__getitems__(draw.indices)) for draw in order)
    work = SingleProcess() if processes.count == 1 else Distributed(processes, "ddp", torch.device("cpu"))
    memory = RecurrentMemory(shares.accumulate) if task.recurrent else None
    objective = work.prepare_objective(Objective(task, network, memory), lambda: True)
    loss = 0.0
    for piece, (_, batch, weights) in enumerate(micro_batches(batches, order, task, network, work)):
        with work.micro_batch(objective, is_last=piece == shares.accumulate - 1):
            value, _ = objective(batch, weights)
            (value / shares.accumulate).backward()
        loss += value.item() / shares.accumulate
    return [work.mean(loss), *(0.0 if p.grad is None else p.grad.norm().item() for p in network.parameters())]


def train_parts(processes: Processes) -> None:
    """Train steps of several networks, one after the other, in these processes."""
    work = Distributed(processes, "ddp", torch.device("cpu"))

    def train_two_steps(*, has_unused: bool, searches: bool) -> None:
        network = nn.Linear(2, 2)
        if has_unused:
            network.unused = nn.Linear(2, 2)
        model: Any = work.prepare_objective(network, lambda: searches)
        assert model.find_unused_parameters == searches
        for _ in range(2):
            with work.micro_batch(model, is_last=True):
                model(torch.ones(1, 2)).sum().backward()

    for number in range(30):
        train_two_steps(has_unused=not number % 2, searches=not number % 2)
    with pytest.raises(UserError, match="unused_parameters"):  # the first step is no sign of the others
        train_two_steps(has_unused=True, searches=False)


def main(folder: Path) -> None:
    processes = find_processes()
    table = {name: {str(size): measure(name, size, processes, folder) for size in (1, 3)} for name in CELLS}
    train_parts(processes)
    if processes.is_first:
        (folder / "step_gradients.json").write_text(json.dumps(table))
    os._exit(0)  # as `cab run` does


if __name__ == "__main__":
    with few_examples():
        main(Path(sys.argv[1]))
