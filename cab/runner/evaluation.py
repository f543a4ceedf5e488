"""Evaluation of a network: its batches are divided among the processes, and their scores are stored as they finish.

The batches do not depend on the number of processes, and each has random numbers of its own. So the scores are the same
in one process and in several, and whether the evaluation was interrupted or not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from cab import kernels
from cab.backbone import Backbone
from cab.errors import UserError, message_of, optional
from cab.files.disk import replacing
from cab.runner.batches import mix_seed, on_device, uncollated
from cab.runner.cell import Cell
from cab.runner.processes import Processes


class DeviceBatches:
    """Batches on a device, passed to a task's validation and evaluation; see :class:`cab.task.Batches`.

    Args:
        device: device of the batches.
        processes: processes that share the batches; all of them make the same calls, with the same weights.
        finished: file for the scores of finished batches, which are not computed again: per line a checksum of the
            lines so far, and the number of the call and the score of the next batch in JSON.
        seed: seed of the random numbers of each batch; None continues those of the process.
        limit: number of examples of each data set that are read; None for all.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        processes: Processes | None = None,
        finished: Path | None = None,
        seed: int | None = None,
        limit: int | None = None,
    ) -> None:
        self.device, self.seed, self.limit = device, seed, limit
        self._processes = processes or Processes()
        self._file = finished
        self._sum = "" if finished is None else finished.name
        self._calls = 0
        self._stored: list[tuple[int, Any]] | None = None

    def first(self, dataset: Dataset[Any], count: int) -> Any:
        """Return a batch of the first ``count`` examples, see :meth:`cab.task.Batches.first`."""
        return next(self._batches(dataset, [[*range(min(count, _size(dataset)))]]))

    def map(self, dataset: Dataset[Any], batch_size: int, score: Callable[[Any], Any]) -> list[Any]:
        """Return the score of each batch, see :meth:`cab.task.Batches.map`."""
        call, self._calls = self._calls, self._calls + 1
        size, rank, count = _size(dataset), self._processes.rank, self._processes.count
        size = size if self.limit is None else min(size, self.limit)
        examples = [[*range(start, min(start + batch_size, size))] for start in range(0, size, batch_size)]
        scores = [row for number, row in self._finished() if number == call]
        batches = self._batches(dataset, examples[len(scores) + rank :: count])
        for start in range(len(scores), len(examples), count):
            own, error = None, None
            if start + rank < len(examples):
                try:
                    own = self._score(batches, score, start + rank)
                except Exception as raised:
                    if count == 1:
                        raise
                    error = raised
            rows = self._gather(own, error)[: len(examples) - start]
            self._store(call, rows)
            scores += rows
        return scores

    def _batches(self, dataset: Dataset[Any], indices: Sequence[Sequence[int]]) -> Iterator[Any]:
        pins = self.device.type == "cuda"
        loader = DataLoader(dataset, batch_sampler=indices, collate_fn=uncollated, pin_memory=pins)  # type: ignore[arg-type]
        return (on_device(batch, self.device) for batch in loader)

    def _score(self, batches: Iterator[Any], score: Callable[[Any], Any], number: int) -> Any:
        """Read and score a batch, each from its own seed, and return the score as it is read from JSON."""
        self._draw_from_seed_of(number)
        batch = next(batches)
        self._draw_from_seed_of(number)
        return json.loads(json.dumps(score(batch)))

    def _draw_from_seed_of(self, number: int) -> None:
        if self.seed is not None:
            torch.manual_seed(mix_seed(self.seed, -1 - number))

    def _gather(self, own: Any, error: Exception | None = None) -> list[Any]:
        """Return the values of all processes; raise the error of one in all of them, so that none waits for others."""
        if self._processes.count == 1:
            return [own]
        if error is not None and not isinstance(error, (UserError, torch.OutOfMemoryError)):
            error = RuntimeError(f"{type(error).__name__}: {message_of(error)}")  # any process can read it
        gathered: list[Any] = [None] * self._processes.count
        with torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext():
            torch.distributed.all_gather_object(gathered, (own, error))
        for _, raised in gathered:
            if raised is not None:
                raise raised
        return [value for value, _ in gathered]

    def _finished(self) -> list[tuple[int, Any]]:
        """Return the number of the call and the score of each finished batch; the first process reads the file."""
        if self._stored is None:
            self._stored = self._gather(self._read() if self._processes.is_first else None)[0]
        return self._stored

    def _read(self) -> list[tuple[int, Any]]:
        """Read the finished batches, up to a line that is damaged, such as one that a process did not complete."""
        if self._file is None or not self._file.exists():
            return []
        lines, rows = self._file.read_text(errors="replace").splitlines(keepends=True), []
        for line in lines:
            checksum, _, text = line.partition(" ")
            if not line.endswith("\n") or _chained(self._sum, text) != checksum:
                break
            rows.append(tuple(json.loads(text)))
            self._sum = checksum
        if len(rows) < len(lines):
            with replacing(self._file) as temporary:
                temporary.write_text("".join(lines[: len(rows)]))
        return rows

    def _store(self, call: int, rows: Sequence[Any]) -> None:
        if self._file is not None and self._processes.is_first:
            texts = []
            for row in rows:
                text = json.dumps([call, row]) + "\n"
                self._sum = _chained(self._sum, text)
                texts.append(f"{self._sum} {text}")
            with self._file.open("a") as file:
                file.write("".join(texts))


def _chained(checksum: str, line: str) -> str:
    """Return the checksum of a line and all before it, whose checksum is given."""
    return hashlib.sha256(f"{checksum} {line}".encode()).hexdigest()[:16]


def _size(dataset: Dataset[Any]) -> int:
    return len(dataset)  # type: ignore[arg-type]


def evaluate(
    cell: Cell,
    backbone: Backbone,
    device: torch.device,
    processes: Processes,
    folder: Path,
    warnings: list[str] | None = None,
    *,
    key: str = "",
) -> dict[str, float]:
    """Return the scores of a network; all processes call it with the same weights.

    Finished batches are stored in ``folder``, and used again with the same configuration, weights, split and ``key``.
    With ``warnings``, the first process saves the task's plots there, or adds a warning.
    """
    task, seed = cell.task, cell.config.seed
    file = folder / f"scores-{_digest(backbone)}-{cell.hash}-{task.test_split}{key}.jsonl"
    batches = DeviceBatches(device, processes=processes, finished=file, seed=seed, limit=task.limit)
    torch.manual_seed(mix_seed(seed, -1))  # the same whether the run was resumed or not
    products, backends = cell.config.matmul_precision(device), kernels.use(cell.config.trainer.kernels)
    with torch.no_grad(), products, backends, cell.config.autocast(device):
        scores = task.evaluate(backbone, batches)
        if processes.is_first and warnings is not None:
            with optional("the plots", warnings):
                task.save_plots(backbone, DeviceBatches(device), folder)
    return scores


def _digest(network: nn.Module) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of all weights."""
    digest = hashlib.sha256()
    for weights in network.state_dict().values():
        digest.update(weights.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
