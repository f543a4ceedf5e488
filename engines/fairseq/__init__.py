"""``engine=fairseq``: train a cell of LM or MLM with fairseq, as in the published runs, using CAB's attentions.

The network starts from the cell's initial weights and the task evaluates it, as for every engine: only the training
loop differs. fairseq runs as a program in its own environment, which `make fairseq` builds.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import cast

from cab import Backbone, UserError
from cab.registry.registries import ATTENTIONS
from cab.runner.cell import Cell
from cab.runner.engine import Run, Training
from cab.runner.failures import DivergedError
from cab.runner.processes import Processes
from engines.fairseq import environment
from engines.fairseq.command import check_trainer, task_arguments, training_arguments
from engines.fairseq.data import fairseq_data
from engines.fairseq.evaluate import fairseq_perplexity
from engines.fairseq.progress import Progress, read_history
from engines.fairseq.weights import load_weights, read_checkpoint, write_checkpoint
from tasks.lm.task import LM
from tasks.mlm.task import MLM

log = logging.getLogger(__name__)


def check(cell: Cell, processes: Processes) -> None:
    """Raise UserError for settings that fairseq does not support, or a missing environment."""
    environment.require()
    task_arguments(cell)
    check_trainer(cell.config.trainer)
    if cell.config.profile:
        raise UserError("engine=fairseq does not support profile=true; remove it, or use engine=torch")
    if processes.count > 1:
        raise UserError("engine=fairseq trains in one process: start it without torchrun or srun")
    name = cell.config.attention.name
    if not ATTENTIONS.get(name).cls.__module__.startswith("attentions."):
        code = "import sys; from cab.registry.registries import ATTENTIONS; print(sys.argv[1] in ATTENTIONS)"
        if environment.python(code, name).strip() != "True":
            raise UserError(
                f"attention '{name}' is not in fairseq's environment; install its package there too: "
                ".venv-fairseq/bin/python -m pip install --no-deps PACKAGE"
            )


def train(run: Run, backbone: Backbone) -> Training:
    """Train ``backbone`` in fairseq, or resume from the last checkpoint in the run's folder."""
    cell, config, device = run.cell, run.cell.config.trainer, run.device
    home = run.folder / "fairseq"
    home.mkdir(exist_ok=True)
    data = fairseq_data(cast(LM | MLM, cell.task).corpus)
    common = [str(data), "--user-dir", str(environment.PLUGIN), *(["--cpu"] if device.type == "cpu" else [])]
    arguments = [*common, *training_arguments(cell), "--save-dir", str(home)]
    kept = home / f"checkpoint_{config.checkpoint_selection}.pt"
    peak = None
    if not (home / "trained").exists():
        start = home / "initial.pt"
        if not start.exists():
            write_checkpoint(backbone, start, arguments)
        peak = _train(cell, [*arguments, "--finetune-from-model", str(start)], home / "train.log")
        (home / "trained").touch()
    for checkpoint in set(home.glob("*.pt")) - {kept}:
        checkpoint.unlink()
    load_weights(backbone, read_checkpoint(kept))
    backbone.to(device).eval()
    history = read_history(home / "train.log")
    perplexity = fairseq_perplexity(cell, common, kept, home / "evaluate.log")
    log.info("fairseq's own perplexity on the test part: %.4f", perplexity)
    return Training(
        history,
        steps=int(history[-1]["step"] or 0),
        best_step=_best_step(history) if config.checkpoint_selection == "best" else 0,
        cost={
            "peak_memory_bytes": peak if device.type == "cpu" else None,
            "peak_memory_kind": "resident set of fairseq-train",
        },
        facts={"versions": environment.versions(), "perplexity": perplexity, "arguments": arguments},
    )


def _train(cell: Cell, arguments: list[str], log_file: Path) -> int:
    progress = Progress(cell.title, cell.config.trainer.max_steps)
    try:
        return environment.run("fairseq-train", arguments, log=log_file, watch=progress)
    except RuntimeError as error:
        if "FloatingPointError" in str(error):
            raise DivergedError(progress.step + 1) from error
        raise
    finally:
        progress.close()


def _best_step(history: list[dict[str, float | None]]) -> int:
    validated = [(entry["validation"], entry["step"]) for entry in history if entry["validation"] is not None]
    return int(min(validated)[1] or 0) if validated else 0
