"""The first training steps of every task on the simulated device; run in a process of its own.

Writes, as JSON, for each cell: its launches, the lines that wait for the device and those that copy to it and block,
and the loss of its first step on the device and on the CPU.
"""

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cab.config.compose import compose
from cab.runner.batches import training_batches
from cab.runner.cell import Cell
from cab.runner.engine import Run, StepObserver, find_engine, load_data, make_initial_backbone
from cab.runner.processes import Processes
from engines.torch import loop
from tests.helpers.runs.simulated_device import Counting, register
from tests.helpers.tasks.records import FEW_CLIPS, few_examples

STEPS, LONGEST = 5, 12  # of a cell, and of the first one: losses are checked in one of ten
COMMON = ["dataset=synthetic", "attention=vanilla", "preset=smoke", "trainer.checkpoint_every=1000"]
COMMON += ["trainer.max_steps=1000", "trainer.validate_every=null", "trainer.checkpoint_selection=last"]
COMMON += ["trainer.batch_size=4", "trainer.micro_batch_size=2"]
CELLS = {
    "lm": ["pattern=CS"],
    "lm of answers": ["pattern=CS", "task.loss_on=answers", "task.vocab_size=800"],
    "lstf": ["pattern=NC"],
    "mlm": ["pattern=NS"],
    "pcc": ["pattern=NS"],
    "sr": ["pattern=NS"],
    "sum": ["pattern=NS"],
    "tts fastspeech2": ["pattern=NS", "backbone=fastspeech2", *FEW_CLIPS],
    "tts transformer_tts": ["pattern=CS", "backbone=transformer_tts", *FEW_CLIPS],
}
PLANTED: dict[str, Callable[[Tensor], object]] = {
    "item": lambda loss: loss.item(),
    "mask": lambda loss: loss[loss > 0],
    "copy": lambda loss: torch.ones(3).to(loss.device, non_blocking=True),
    "index": lambda loss: loss.expand(3)[torch.tensor([0, 2])],
    "nothing": lambda loss: loss + torch.ones(3, device=loss.device),
}
"""Called with the loss of each micro-batch; all but the last wait or block."""


def train(cell: Cell, device: torch.device, num_steps: int) -> float:
    losses: list[Tensor] = []
    observer = StepObserver(num_steps, lambda _, loss: losses.append(loss))
    with tempfile.TemporaryDirectory() as folder:
        vars(cell.config)["results_dir"] = Path(folder)
        run = Run(cell, "", find_engine("torch"), device, Processes(), observer=observer)
        run.folder.mkdir()
        run.engine.train(run, make_initial_backbone(cell))
        run.open_files.close()
    return losses[0].item()


def main() -> None:
    """Count in the cells of the arguments, or with ``planted`` once with each of :data:`PLANTED` in a loss."""
    warnings.simplefilter("ignore")
    device, counting, table = register(), Counting(), {}

    def batches(*args: Any, device: torch.device, **options: Any) -> Any:
        """Return a loader that pins as for a GPU."""
        return training_batches(*args, device=torch.device("cuda") if device.type == "simulated" else device, **options)

    def run_steps(*args: Any) -> None:
        counting.reset()
        original(*args)
        counts.update(launches=counting.launches, reads=dict(counting.reads), copies=dict(counting.copies))

    original, counts = loop.run_steps, dict[str, Any]()
    vars(loop).update(run_steps=run_steps, training_batches=batches)
    Tensor.pin_memory = lambda self, *_: counting.pin(self)  # type: ignore[method-assign, assignment]
    for name in sys.argv[1:]:
        key = name.removeprefix("planted ")
        cell = Cell.from_config(compose([f"task={key.partition(' ')[0]}", *COMMON, *CELLS[key]]))
        load_data(cell)
        if not name.startswith("planted"):
            cpu = train(cell, torch.device("cpu"), 1)
            with counting:
                table[name] = {"device": train(cell, device, LONGEST if name == "lm" else STEPS), "cpu": cpu, **counts}
            continue
        loss = cell.task.loss
        for planted, wait in PLANTED.items():
            cell.task.loss = lambda *args: (value := loss(*args), wait(value.detach()))[0]  # noqa: B023
            with counting:
                train(cell, device, 2)
            table[planted] = dict(counts)
    sys.stdout.write(json.dumps(table))


if __name__ == "__main__":
    with few_examples():
        main()
