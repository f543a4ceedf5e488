"""The parts of a visit, one after the other, each in processes of its own and within its time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from cab.errors import UserError
from cab.visit.visit import Visit

log = logging.getLogger(__name__)

WHOLE = 490.0
"""Seconds of all parts."""

LOG = "log.txt"
MACHINE = "machine.json"


@dataclass(frozen=True)
class Part:
    """One question, the function of a visit that answers it, and the seconds that it may take.

    Args:
        shares: processes that share the work on a GPU; where time is measured there is one.
    """

    name: str
    title: str
    answer: Callable[[Visit], None]
    seconds: float
    shares: int = 1


def parts() -> list[Part]:
    """In the order in which they are worth their time."""
    from cab.visit import correctness, costs, training

    return [
        Part("verify", "cab verify of every attention and pattern", correctness.verify, 110, shares=6),
        Part("agreement", "fast forms against readable ones on a CPU", correctness.agreement, 70, shares=6),
        Part("training", "smoke training of every task, a resumed run", training.smoke, 75, shares=4),
        Part("efficiency", "time and memory against length", costs.efficiency, 115),
        Part("throughput", "training of GPT-2 at the paper's size", costs.throughput, 75),
        Part("suite", "a part of the suite of small runs", training.suite, 45),
    ]


def conduct(visit: Visit, chosen: Sequence[Part], *, limit: float = WHOLE, say: Callable[[str], None] = print) -> None:
    """Runs the parts; what one had written when its time was up stays."""
    visit.make_tables()
    (visit.folder / MACHINE).write_text(json.dumps(machine(visit), indent=1) + "\n")
    end = time.monotonic() + limit
    for part in chosen:
        seconds = min(part.seconds, end - time.monotonic())
        say(f"{part.name}: {part.title}, at most {max(0, seconds):.0f} s")
        begin = time.monotonic()
        status, detail = run_part(part, visit, seconds) if seconds > 1 else ("left out", "the visit's time is up")
        row = {"part": part.name, "status": status, "limit": round(part.seconds), "detail": detail}
        visit.write("parts", **row, seconds=time.monotonic() - begin)


def machine(visit: Visit) -> dict[str, Any]:
    """Where and with what the numbers were made."""
    import torch

    from cab.runner.provenance import hardware, revision, versions

    facts = in_another_process(hardware, torch.device(visit.device))
    return {
        "visited": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "short": visit.short,
        **facts,
        **versions(),
        "torch": torch.__version__,
        "triton": triton_version(),
        **revision(),
    }


def triton_version() -> str:
    """Empty where there is none: sums of blocks are then formed one after the other."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return ""


def in_another_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns: for what starts CUDA, which must not be started in a process that is forked afterwards."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, arguments)


def run_part(part: Part, visit: Visit, seconds: float) -> tuple[str, str]:
    """Its status and what went wrong; processes that are not done in time are ended, with those that they started."""
    shares = part.shares if visit.device == "cuda" else 1
    context = multiprocessing.get_context("fork")
    processes = []
    for share in range(shares):
        given = dataclasses.replace(visit, share=share, shares=shares)
        process = context.Process(target=_answer, args=(part, given))
        process.start()
        processes.append(process)
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    late = [process for process in processes if process.exitcode is None]
    for process in late:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
    if any(process.exitcode for process in processes if process not in late):
        return "failed", f"{(visit.folder / LOG).read_text().strip().splitlines()[-1]} (see {LOG})"
    return ("time is up", "") if late else ("done", "")


def _answer(part: Part, visit: Visit) -> None:
    """In a process and a process group of its own, what it prints in the log."""
    os.setsid()
    file = os.open(visit.folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.stdout = sys.stderr = os.fdopen(file, "w", buffering=1)
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    log.info("== %s, process %d of %d", part.name, visit.share + 1, visit.shares)
    if visit.shares > 1:
        divide_processors(visit.shares)
    try:
        part.answer(visit)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def divide_processors(shares: int) -> None:
    """Each process takes its share of them for its own threads and for those that compile."""
    import torch

    own = max(1, (os.cpu_count() or 1) // shares)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(own)
    torch.set_num_threads(own)


def machine_of(folder: Path) -> dict[str, Any]:
    """What :func:`conduct` wrote of the machine; UserError where no visit was."""
    try:
        facts: dict[str, Any] = json.loads((folder / MACHINE).read_text())
    except FileNotFoundError:
        raise UserError(f"{folder} has no {MACHINE}: name the folder of a visit, as `cab visit run` left it") from None
    return facts
