"""``engine=fairseq``: train a cell of LM or MLM with fairseq, as in the published runs, using CAB's attentions.

The network starts from the cell's initial weights and the task evaluates it, as for every engine: only the training
loop differs. fairseq runs as a program in its own environment, which `make fairseq` builds.
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from cab import Backbone, UserError
from cab.files.disk import replacing
from cab.registry.registries import ATTENTIONS
from cab.registry.stacks import parts_of
from cab.runner.cell import Cell
from cab.runner.engine import Run, Training
from cab.runner.processes import DivergedError, Processes
from engines.fairseq import environment
from engines.fairseq.command import check_settings, task_arguments, training_arguments
from engines.fairseq.data import fairseq_data
from engines.fairseq.weights import load_weights, read_checkpoint, write_checkpoint
from tasks.lm.task import LM
from tasks.mlm.task import MLM

log = logging.getLogger(__name__)

LOSS = re.compile(r'Loss \(base 2\): ([^,]+),|"test_loss": "([^"]+)"')
"""In bits, as printed by `fairseq-eval-lm` and `fairseq-validate`."""
STATISTICS = re.compile(r"\| (train_inner|valid|test) \| (\{.*\})$")


def check(cell: Cell, processes: Processes) -> None:
    """Raise UserError for settings that fairseq does not support, or a missing environment."""
    task_arguments(cell)
    check_settings(cell.config)
    if processes.count > 1:
        raise UserError("engine=fairseq trains in one process: start it without torchrun or srun")
    if not (environment.HOME / "ready").exists():
        raise UserError("engine=fairseq needs fairseq's own environment: run make fairseq")
    name = cell.config.attention.name
    parts = parts_of(ATTENTIONS.get(name)).values()
    if not all(part.cls.__module__.startswith("attentions.") for part in parts):
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
        restore_last(home)
        peak = _train([*arguments, "--finetune-from-model", str(start)], home / "train.log")
        (home / "trained").touch()
    for checkpoint in set(home.glob("*.pt")) - {kept}:
        checkpoint.unlink()
    load_weights(backbone, read_checkpoint(kept))
    backbone.to(device).eval()
    with (home / "train.log").open() as lines:
        entries = history(lines)
    validated = [(entry["validation"], entry["step"]) for entry in entries if entry["validation"] is not None]
    perplexity = fairseq_perplexity(cell, common, kept, home / "evaluate.log")
    log.info("fairseq's own perplexity on the test part: %.4f", perplexity)
    return Training(
        entries,
        steps=int(entries[-1]["step"] or 0),
        best_step=int(min(validated)[1] or 0) if validated and config.checkpoint_selection == "best" else 0,
        cost={
            "peak_memory_bytes": peak if device.type == "cpu" else None,
            "peak_memory_kind": "resident set of fairseq-train",
        },
        facts={"versions": environment.versions(), "perplexity": perplexity, "arguments": arguments},
    )


def restore_last(home: Path) -> None:
    """Replace a last checkpoint that is incomplete by the newest complete one.

    fairseq writes the checkpoint of a step and then copies it to the best and the last one, and a copy can be
    interrupted.
    """
    last = home / "checkpoint_last.pt"
    if last.exists() and not zipfile.is_zipfile(last):
        last.unlink()
        complete = [path for path in home.glob("checkpoint_*.pt") if zipfile.is_zipfile(path)]
        if complete:
            with replacing(last) as temporary:
                shutil.copyfile(max(complete, key=lambda path: path.stat().st_mtime), temporary)


def _train(arguments: list[str], log_file: Path) -> int:
    step = 0

    def report(line: str) -> None:
        nonlocal step
        for entry in history([line]):
            step = int(entry["step"] or 0)
            if entry["validation"] is not None:
                log.info("fairseq: step %d, validation %.4f", step, entry["validation"])

    try:
        return environment.run("fairseq-train", arguments, log=log_file, watch=report)
    except RuntimeError as error:
        if "FloatingPointError" in str(error):
            raise DivergedError(step + 1) from error
        raise


def history(lines: Iterable[str]) -> list[dict[str, float | None]]:
    """Return losses in nats by step, from fairseq's log. After an interruption, later entries replace earlier ones."""
    entries: dict[int, dict[str, float | None]] = {}
    for match in filter(None, (STATISTICS.search(line.rstrip()) for line in lines)):
        kind, numbers = match[1], json.loads(match[2])
        prefix, name = ("", "loss") if kind == "train_inner" else (f"{kind}_", "validation")
        step = int(numbers[f"{prefix}num_updates"])
        entry = entries.setdefault(step, {"step": step, "loss": None, "validation": None})
        entry[name] = float(numbers[f"{prefix}loss"]) * math.log(2)
        if kind == "train_inner" and "auxiliary_loss" in numbers:
            entry["auxiliary_loss"] = float(numbers["auxiliary_loss"])
    return [entries[step] for step in sorted(entries)]


def fairseq_perplexity(cell: Cell, data: list[str], checkpoint: Path, log_file: Path) -> float:
    """Return the test perplexity of all tokens (`fairseq-eval-lm`) or of masked ones (`fairseq-validate`)."""
    task = cast(LM | MLM, cell.task)
    program, subset = ("eval-lm", "--gen-subset") if isinstance(task, LM) else ("validate", "--valid-subset")
    arguments = [*data, "--path", str(checkpoint), "--batch-size", str(task.evaluation_batch_size)]
    arguments += [*task_arguments(cell), subset, "test", "--log-format", "json"]
    losses: list[str] = []
    environment.run(
        f"fairseq-{program}",
        arguments,
        log=log_file,
        watch=lambda line: losses.extend(match[1] or match[2] for match in LOSS.finditer(line)),
    )
    return 2 ** float(losses[-1])
