"""Measure on a machine with a GPU and no network, step by step: `python -m tools.gpu.supervisor OUT` (scripts/gpu.sh).

A worker process imports the project once and measures one item after another: an attention, a task, a precision. This
process only watches it. An item that fails, crashes the process or exceeds the time of its step is recorded with its
rows so far, and the next one starts. The archive ``OUT/gpu.tar.gz`` is replaced after every item. The tables are
printed at the end, the most important one last.

docs/internals/gpu-kernels.md lists the steps.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import multiprocessing
import os
import signal
import sys
import tarfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cab.errors import unknown_name
from cab.files.disk import replacing
from cab.files.text_table import text_table

Row = Mapping[str, object]
"""Values of a table by column."""

ARCHIVE = "gpu.tar.gz"
KEPT = (".csv", ".json", ".jsonl", ".txt")
"""Files of the archive; checkpoints and traces are too large."""
LARGEST = 2**20
"""Bytes of a file in the archive; of a larger one it has the end."""
PRINTED = 11_900
"""Characters of the tables, together."""
FAILED = 20
"""Failed items that are printed."""
RESERVED = 15
"""Seconds at the end to stop the worker, write the archive and print the tables."""
LOST = "GPU lost"
"""Status of an item after which every call to the GPU fails in its process, as after an illegal address."""
GRACE = 5
"""Seconds in which an interrupted item must end before its process is killed."""


@dataclass(frozen=True)
class Step:
    """A table: the function of that name in ``tools.gpu.measurements`` returns or yields the rows of an item.

    Attributes:
        seconds: its share of the budget; what a step leaves is added to the next one.
        items: first argument of each call.
        on_cpu: items without a GPU.
    """

    title: str
    seconds: int
    items: tuple[str, ...]
    on_cpu: tuple[str, ...]


RECURRENT = (
    "gla", "hgrn2", "ssd", "mamba3", "kda", "gated_deltanet", "deltaproduct", "comba", "rwkv7", "retention",
)  # fmt: skip
CHECKED = (
    *(f"layer {name}" for name in ("vanilla", *RECURRENT, "local")),
    *(f"kernels {name}" for name in (*RECURRENT, "deltanet", "gated_deltanet_2", "forgetting", "abc")),
    *(f"kernels {name}" for name in ("vanilla", "vanilla:window=20", "local")),
)  # fmt: skip
"""Layers first: costs have the shapes for which their kernels are compiled. All operations have an attention."""
TASKS = ("lm", "mlm", "sum", "sr", "pcc", "lstf", "tts fastspeech2", "tts transformer_tts")
RUNS = tuple(
    f"{seed} {attention} {dataset} {features}"
    for seed in range(1, 6)
    for attention in ("vanilla", "abc", "cosformer", "performer")
    for dataset in ("etth1", "etth2", "ettm1")
    for features in "MS"
)
"""The published value is a mean over six parts; the runs of a seed give one value per attention."""
STEPS = {
    "machine": Step("machine and versions", 5, ("all",), ("all",)),
    "roofs": Step("measured rates of the machine", 20, ("rates", "launches", "softmax"), ("rates", "softmax")),
    "correctness": Step("errors in bfloat16 against float64", 90, CHECKED, ("layer gla", "kernels gla")),
    "kernels": Step("backends that differ from attentions/backends.csv", 40, ("CS", "NS", "NC", "CC", "flex"), ("CS",)),
    "costs": Step("time in milliseconds", 160, ("vanilla", *RECURRENT, "local"), ("vanilla", "gla")),
    "lm": Step(
        "training steps of LM at the paper's size",
        90,
        ("vanilla bf16", "gla bf16", "vanilla tf32", "vanilla compiled", "vanilla float32"),
        ("vanilla float32", "gla float32"),
    ),
    "tasks": Step("training steps of each task", 40, TASKS, TASKS),
    "decoding": Step("decoding in milliseconds per token", 40, ("vanilla", *RECURRENT), ("vanilla", "gla")),
    "rollout": Step("distances of steps, chunks and batches from one call", 20, ("vanilla", *RECURRENT), ("gla",)),
    "table3": Step("Table 3, LSTF NC on ETT", 500, RUNS, RUNS[:6]),
}
"""In the order in which they are measured."""
FIRST = tuple(name for name in STEPS if name != "table3")
"""The steps without a choice."""
BY_IMPORTANCE = ("machine", "tasks", "kernels", "rollout", "decoding", "correctness", "roofs", "lm", "costs", "table3")
"""Tables, the least important first; the last lines of a log are the ones that are always kept."""


@dataclass
class Results:
    """Rows and failures, written to ``folder`` as they arrive."""

    folder: Path
    rows: dict[str, list[Row]] = field(default_factory=dict)
    items: list[Row] = field(default_factory=list)

    def add(self, step: str, item: str, status: str, seconds: float, rows: Sequence[Row] = (), error: str = "") -> None:
        """Record an item: its rows, or why it has none; a row with ``passed`` False makes it ``inexact``."""
        status = "inexact" if any(row.get("passed") is False for row in rows) else status
        reason = error.strip().splitlines()[-1] if error.strip() else ""
        self.items.append({"step": step, "item": item, "status": status, "seconds": f"{seconds:.1f}", "error": reason})
        write_table(self.folder / "items.csv", self.items)
        if error:
            with (self.folder / "errors.txt").open("a") as file:
                file.write(f"{step} {item}: {status}\n{error}\n")
        if rows:
            self.rows.setdefault(step, []).extend(rows)
            write_table(self.folder / f"{step}.csv", self.rows[step])

    def report(self) -> str:
        """Return all tables within :data:`PRINTED` characters, the most important one last."""
        counts = {name: [row["status"] for row in self.items if row["step"] == name] for name in STEPS}
        overview = [[name, len(given), given.count("ok")] for name, given in counts.items() if given]
        failed = [[*list(row.values())[:4], str(row["error"])[:150]] for row in self.items if row["status"] != "ok"]
        failed = failed[:FAILED]
        texts = [text_table(["step", "items", "ok"], overview)]
        texts += [text_table(["step", "item", "status", "seconds", "error"], failed)] if failed else []
        left, tables = PRINTED - sum(len(text) + 2 for text in texts), []
        for name in reversed(BY_IMPORTANCE):
            if name in self.rows:
                text = f"{name}: {STEPS[name].title}\n{table_of(self.rows[name])}"
                text = text if len(text) + 2 <= left else f"{name}: see {name}.csv in {ARCHIVE}"
                left -= len(text) + 2
                tables.append(text)
        return "\n\n".join([*texts, *reversed(tables)])[-PRINTED:]


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Return the columns of all rows in the order of their first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def table_of(rows: Sequence[Row]) -> str:
    """Format rows; a column that all rows lack is left out, an absent value is empty."""
    columns = [name for name in columns_of(rows) if any(row.get(name) not in (None, "") for row in rows)]
    return text_table(columns, [[text_of(row.get(name)) for name in columns] for row in rows])


def text_of(value: object) -> str:
    """Format a value in four digits."""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Replace a CSV file."""
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns_of(rows), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_archive(folder: Path, out: Path) -> None:
    """Replace the archive by one of the text files in ``folder``, each with its last :data:`LARGEST` bytes."""
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / ARCHIVE) as temporary, tarfile.open(temporary, "w:gz") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in KEPT and path.is_file()):
            with path.open("rb") as file:
                size = min(LARGEST, path.stat().st_size)
                file.seek(-size, os.SEEK_END)
                entry = tarfile.TarInfo(f"gpu/{path.relative_to(folder)}")
                entry.size, entry.mtime = size, int(path.stat().st_mtime)
                archive.addfile(entry, file)


# --- the worker -------------------------------------------------------------------------------------------------------


def work(module: str, device: str, folder: Path, connection: Connection) -> None:
    """Answer each received (step, item) by its rows and its status, in a process of its own.

    Each row is sent as soon as it is measured, without a status; the last answer has the status, and the traceback of
    an error. The first answer, when the project is imported, is empty.
    """
    os.setpgrp()  # killed together with the processes that it starts
    with (folder / "log.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    measurements: Any = importlib.import_module(module)
    measurements.start(device)
    connection.send(None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `cab run` makes a checkpoint instead
    while True:
        with contextlib.suppress(KeyboardInterrupt):  # of an item that had ended
            try:
                step, item = connection.recv()
            except EOFError:  # all is measured
                return
            try:
                for row in getattr(measurements, step)(item, device, folder):
                    connection.send(("", row))
                connection.send(("ok", ""))
            except KeyboardInterrupt:
                connection.send(("out of time", ""))
            except Exception:
                error, is_usable = traceback.format_exc(), measurements.is_usable(device)
                connection.send(("failed" if is_usable else LOST, error))


class Worker:
    """The process that measures; it is started again after it died."""

    def __init__(self, module: str, device: str, folder: Path) -> None:
        self._arguments = (module, device, folder)
        self._log = folder / "log.txt"
        self._process: Any = None

    def start(self, seconds: float) -> None:
        """Start the process and wait for its imports; raises RuntimeError with the end of its log if they fail."""
        if self._process is not None:
            return
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=work, args=(*self._arguments, other))
        self._process.start()
        other.close()
        try:
            if not self._connection.poll(max(seconds, 0)):
                raise EOFError
            self._connection.recv()
        except EOFError:
            self.stop()
            log = self._log.read_text()[-2000:] if self._log.exists() else ""
            raise RuntimeError(f"the worker does not start within {seconds:.0f} s:\n{log}") from None

    def measure(self, step: str, item: str, seconds: float) -> tuple[str, list[Row], str]:
        """Return status, rows and error of an item, which is interrupted after ``seconds``."""
        rows: list[Row] = []
        try:
            self._connection.send((step, item))
            status, error = self._receive(rows, seconds)
            if not status:
                self._process.terminate()
                status, error = self._receive(rows, GRACE)
            if not status:
                self.stop()
                return "out of time", rows, f"killed after {seconds:.0f} s"
            if status == LOST:
                self.stop()
            return status, rows, error
        except (EOFError, OSError):
            self._process.join(GRACE)
            code = self._process.exitcode
            self.stop()
            return "crashed", rows, f"the process ended with status {code}"

    def _receive(self, rows: list[Row], seconds: float) -> tuple[str, str]:
        """Add the rows of an item, and return its status and error; no status if it takes more than ``seconds``."""
        end = time.monotonic() + seconds
        while self._connection.poll(max(end - time.monotonic(), 0)):
            status, content = self._connection.recv()
            if status:
                return status, content
            rows.append(content)
        return "", ""

    def stop(self, *, is_idle: bool = False) -> None:
        """End the process, if there is one; it is killed if it is not idle."""
        if self._process is not None:
            self._connection.close()
            self._process.join(GRACE if is_idle else 0)
            for kill in (lambda: os.killpg(self._process.pid, signal.SIGKILL), self._process.kill):
                with contextlib.suppress(ProcessLookupError):
                    kill()
            self._process.join()
            self._process = None


# --- all steps --------------------------------------------------------------------------------------------------------


def measure_all(names: Sequence[str], worker: Worker, results: Results, device: str, end: float) -> Iterator[str]:
    """Measure the items of all steps until ``end`` (``time.monotonic``), and yield the name of each finished item.

    The deadline of a step is its share of the time, counted from the start of the first step.
    """
    worker.start(end - time.monotonic())
    begin, done, total = time.monotonic(), 0, sum(STEPS[name].seconds for name in names)
    for name in names:
        done += STEPS[name].seconds
        deadline = begin + (end - begin) * done / total
        for item in STEPS[name].on_cpu if device == "cpu" else STEPS[name].items:
            start = time.monotonic()
            status, rows, error = "no time left", list[Row](), ""
            if start < deadline:
                worker.start(end - start)
                status, rows, error = worker.measure(name, item, max(deadline - time.monotonic(), 0))
            seconds = time.monotonic() - start
            results.add(name, item, status, seconds, rows, error)
            print(f"{start - begin:4.0f} s  {name} {item}: {status}, {seconds:.1f} s", flush=True)
            yield item


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps and return 0 if every item is ``ok``."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu.supervisor")
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=520)
    parser.add_argument("--folder", type=Path, default=Path("build/gpu"))
    parser.add_argument("--measurements", default="tools.gpu.measurements")
    args = parser.parse_args(argv)
    for name in args.steps:
        if name not in STEPS:
            raise SystemExit(unknown_name("step", name, STEPS))
    args.folder.mkdir(parents=True, exist_ok=True)
    results, worker = Results(args.folder), Worker(args.measurements, args.device, args.folder)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    end, is_complete = time.monotonic() + args.seconds - RESERVED, False
    try:
        for _ in measure_all(args.steps or FIRST, worker, results, args.device, end):
            write_archive(args.folder, args.out)
        is_complete = all(row["status"] == "ok" for row in results.items)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    except RuntimeError as error:  # of the worker's start
        print(error, flush=True)
    finally:
        worker.stop(is_idle=is_complete)
        (args.folder / "report.txt").write_text(results.report() + "\n")
        write_archive(args.folder, args.out)
        print(f"\n{results.report()}", flush=True)
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
