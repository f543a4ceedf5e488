"""``engine=fairseq``: train a cell of LM, MLM or Sum with fairseq, as in the published runs, using CAB's attentions.

The network starts from the cell's initial weights and the task evaluates it, as for every engine: only the training
loop differs. fairseq runs as a program in its own environment, which `make fairseq` builds.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import cast

import torch

from cab import Backbone, UserError
from cab.files.disk import replacing
from cab.registry.registries import ATTENTIONS
from cab.registry.stacks import parts_of
from cab.runner.cell import Cell
from cab.runner.engine import Run, Training
from cab.runner.processes import DivergedError, Processes
from engines.fairseq import environment
from engines.fairseq.command import (
    check_settings,
    check_task,
    history_interval,
    precision_arguments,
    process_arguments,
    task_arguments,
    training_arguments,
)
from engines.fairseq.data import fairseq_data
from engines.fairseq.log import LiveLog, history
from engines.fairseq.weights import load_weights, read_checkpoint, write_checkpoint
from engines.torch.loggers import check_logger
from tasks.lm.task import LM
from tasks.mlm.task import MLM
from tasks.sum.task import ROUGE, Sum, rouge

log = logging.getLogger(__name__)


def check(cell: Cell, processes: Processes) -> None:
    """Raise UserError for settings that fairseq does not support, or a missing environment or logger."""
    check_task(cell)
    check_settings(cell.config, processes)
    check_logger(cell.config.logger.name)
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
    """Train ``backbone`` in fairseq, or resume from the last checkpoint in the run's folder.

    Each process of the run starts one of fairseq's.
    """
    cell, config, device, processes = run.cell, run.cell.config.trainer, run.device, run.processes
    home = run.folder / "fairseq"
    data = fairseq_data(cast(LM | MLM | Sum, cell.task))
    common = [str(data), "--user-dir", str(environment.PLUGIN), "--distributed-world-size", "1"]
    common += ["--cpu"] if device.type == "cpu" else []
    arguments = [*common, *training_arguments(cell, num_processes=processes.count)]
    precision = cell.config.precision_on(device).precision
    arguments += [*precision_arguments(precision, device.type), "--save-dir", str(home)]
    start, kept = home / "initial.pt", home / f"checkpoint_{config.checkpoint_selection}.pt"
    if processes.is_first:
        home.mkdir(exist_ok=True)
        if not (home / "trained").exists():
            if not start.exists():
                write_checkpoint(backbone, start, arguments)
            restore_last(home)
    live, peak = LiveLog(run), None
    rendezvous = _from_first(run, lambda: "" if (home / "trained").exists() else _free_address())
    if rendezvous:
        arguments += process_arguments(processes, device, rendezvous) if processes.count > 1 else []
        peak = _train([*arguments, "--finetune-from-model", str(start)], home, processes, live)
    load_weights(backbone, read_checkpoint(kept))
    backbone.to(device).eval()
    if not processes.is_first:
        _wait_for(home / "scores.json")  # not in a collective operation, which would time out
        return Training([], steps=0, best_step=0)
    (home / "trained").touch()
    for checkpoint in set(home.glob("*.pt")) - {kept}:
        checkpoint.unlink()
    with (home / "train.log").open() as lines:
        entries = history(lines, history_interval(config))
    steps = int(entries[-1]["step"] or 0)
    loggers = live.finish(steps)
    validated = [(entry["validation"], entry["step"]) for entry in entries if entry["validation"] is not None]
    if not (home / "scores.json").exists():
        with replacing(home / "scores.json") as temporary:
            temporary.write_text(json.dumps(fairseq_scores(cell, common, kept, home / "evaluate.log")))
    scores = json.loads((home / "scores.json").read_text())
    log.info("fairseq's own scores on the test part: %s", scores)
    return Training(
        entries,
        steps=steps,
        best_step=int(min(validated)[1] or 0) if validated and config.checkpoint_selection == "best" else 0,
        cost={
            "peak_memory_bytes": peak if device.type == "cpu" else None,
            "peak_memory_kind": "resident set of fairseq-train",
        },
        facts={"versions": environment.versions(), **scores, "arguments": arguments},
        log_record=loggers.write_record,
    )


def _from_first(run: Run, value: Callable[[], str]) -> str:
    """Return the value of the first process in all of them, once it has reached this point."""
    if run.processes.count == 1:
        return value()
    run.processes.connect(run.device)
    shared = [value() if run.processes.is_first else ""]
    torch.distributed.broadcast_object_list(shared, device=run.device)
    return shared[0]


def _free_address() -> str:
    """Return an address of this machine with a free port."""
    with socket.socket() as free:
        free.bind(("", 0))
        return f"tcp://{os.environ.get('MASTER_ADDR', 'localhost')}:{free.getsockname()[1]}"


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(1)


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


def _train(arguments: list[str], home: Path, processes: Processes, live: LiveLog) -> int:
    name, watch = ("train.log", live.read) if processes.is_first else (f"train-{processes.rank}.log", None)
    try:
        return environment.run("fairseq-train", arguments, log=home / name, watch=watch)
    except RuntimeError as error:
        if "FloatingPointError" in str(error):
            raise DivergedError(live.step + 1) from error
        raise


LOSS = re.compile(r'Loss \(base 2\): ([^,]+),|"test_loss": "([^"]+)"')
"""In bits, as printed by `fairseq-eval-lm` and `fairseq-validate`."""
HYPOTHESIS = re.compile(r"H-(\d+)\t[^\t]+\t(.*)")
"""Number and tokens of a text, as printed by `fairseq-generate`."""


def fairseq_scores(cell: Cell, data: Sequence[str], checkpoint: Path, log_file: Path) -> dict[str, float]:
    """Return the perplexity of all tokens (LM) or of masked ones (MLM), or ROUGE of the summaries (Sum)."""
    task = cast(LM | MLM | Sum, cell.task)
    arguments = [*data, "--path", str(checkpoint), "--batch-size", str(task.evaluation_batch_size)]
    arguments += [*task_arguments(cell), "--log-format", "json"]
    if isinstance(task, Sum):
        return _score_summaries(task, _matches("generate", [*arguments, *search_arguments(task)], HYPOTHESIS, log_file))
    program, subset = ("eval-lm", "--gen-subset") if isinstance(task, LM) else ("validate", "--valid-subset")
    *_, (in_text, in_json) = _matches(program, [*arguments, subset, "test"], LOSS, log_file)
    return {"perplexity": 2 ** float(in_text or in_json)}


def search_arguments(task: Sum) -> list[str]:
    """Return the arguments of `fairseq-generate` for the search of the task; greedy search has one beam."""
    return [
        *("--gen-subset", "test", "--beam", str(task.num_beams if task.search == "beam" else 1)),
        *("--min-len", str(task.min_length), "--max-len-b", str(task.max_length)),
        *("--lenpen", str(task.length_penalty), "--no-repeat-ngram-size", str(task.blocked_ngram or 0)),
    ]


def _score_summaries(task: Sum, hypotheses: Iterator[tuple[str, str]]) -> dict[str, float]:
    tokens = {int(number): [int(word) for word in words.split() if word.isdigit()] for number, words in hypotheses}
    references = islice(task.splits["test"].read_texts(), task.limit)
    pairs = ((reference, task.bpe.decode(tokens[row])) for row, (_, reference) in enumerate(references))
    return {name: score for name, score in rouge(pairs).items() if name in ROUGE}


def _matches(
    program: str, arguments: Sequence[str], pattern: re.Pattern[str], log_file: Path
) -> Iterator[tuple[str, str]]:
    """Yield the groups of each match in the output of a program."""
    found: list[tuple[str, str]] = []
    environment.run(
        f"fairseq-{program}", arguments, log=log_file, watch=lambda line: found.extend(pattern.findall(line))
    )
    yield from found
