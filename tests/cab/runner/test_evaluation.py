"""Batches of an evaluation are scored once, by any number of processes, also after an interruption."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from cab import UserError
from cab.runner.evaluation import DeviceBatches
from cab.runner.processes import Processes

CPU = torch.device("cpu")


class Examples(Dataset[int]):
    def __len__(self) -> int:
        return 11

    def __getitems__(self, indices: list[int]) -> list[int]:
        return indices


@pytest.fixture
def in_threads(monkeypatch):
    """Run a function of the rank in three threads, which exchange values as processes do."""
    barrier, exchanged, ranks = threading.Barrier(3), [None] * 3, threading.local()

    def all_gather_object(gathered, own):
        exchanged[ranks.own] = own
        barrier.wait(10)
        gathered[:] = exchanged
        barrier.wait(10)

    def run(function):
        with ThreadPoolExecutor(3) as pool:
            return [*pool.map(lambda rank: setattr(ranks, "own", rank) or function(rank), range(3))]

    monkeypatch.setattr("torch.distributed.all_gather_object", all_gather_object)
    return run


def store(file: Path, scores: list[Any]) -> None:
    """Store the scores of the first batches, as an interrupted evaluation does."""
    DeviceBatches(CPU, finished=file)._store(0, scores)


def test_processes_share_the_batches_that_are_not_finished(in_threads, tmp_path):
    """Of two calls with six batches each, four batches of the first were finished; a line is incomplete."""
    file = tmp_path / "scores.jsonl"
    finished = [{"sum": -i} for i in range(4)]
    store(file, finished)
    file.write_text(f"{file.read_text()}0123 [0, {{")
    scored = []

    def score(batch):
        scored.append(tuple(batch))
        return {"sum": math.inf if 10 in batch else sum(batch) / 3}

    def run(rank):
        batches = DeviceBatches(CPU, processes=Processes(rank, 3), finished=file)
        return [batches.map(Examples(), 2, score), batches.map(Examples(), 2, score)]

    results = in_threads(run)
    complete = [*({"sum": (4 * i + 1) / 3} for i in range(5)), {"sum": math.inf}]
    assert results == [[[*finished, *complete[4:]], complete]] * 3
    twice = [(8, 9), (10,)]
    assert sorted(scored) == sorted([(0, 1), (2, 3), (4, 5), (6, 7), *twice, *twice])
    scored.clear()
    assert in_threads(run) == results
    assert not scored


@pytest.mark.parametrize(("error", "expected"), [(UserError("too long"), UserError), (KeyError("x"), RuntimeError)])
def test_an_error_of_one_process_ends_all(in_threads, error, expected):
    def score(batch):
        if 3 in batch:
            raise error
        return 0

    def run(rank):
        with pytest.raises(expected, match=r"too long|KeyError"):
            DeviceBatches(CPU, processes=Processes(rank, 3)).map(Examples(), 2, score)

    in_threads(run)


class Drawn(Examples):
    """Data that are drawn while they are read, such as random views."""

    def __getitems__(self, indices: list[int]) -> list[float]:
        return torch.rand(len(indices)).tolist()


@pytest.mark.parametrize(("data", "score"), [(Examples(), lambda _: float(torch.rand(()))), (Drawn(), sum)])
def test_random_numbers_of_a_batch_depend_on_the_seed_and_its_number(data, score, tmp_path):
    alone = DeviceBatches(CPU, seed=1).map(data, 2, score)
    assert len({*alone, *DeviceBatches(CPU, seed=2).map(data, 2, score)}) == 12
    file = tmp_path / "scores.jsonl"
    store(file, [0.5, 0.5])
    assert DeviceBatches(CPU, seed=1, finished=file).map(data, 2, score) == [0.5, 0.5, *alone[2:]]


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [lines[0], lines[1][:-3]],
        lambda lines: [lines[0], "\0\0\n", *lines[1:]],
        lambda lines: [lines[0], lines[1].replace("1.5", "9.5"), lines[2]],
        lambda lines: [lines[0], lines[2]],
        lambda lines: [lines[0], lines[0], *lines[1:]],
    ],
    ids=["cut", "zeros", "changed", "lost", "doubled"],
)
def test_what_follows_a_damaged_line_is_scored_again(damage, tmp_path):
    file = tmp_path / "scores.jsonl"
    store(file, [0.5, 1.5, 2.5])
    file.write_text("".join(damage(file.read_text().splitlines(keepends=True))))
    for _ in range(2):
        assert DeviceBatches(CPU, finished=file).map(Examples(), 4, sum) == [0.5, 22, 27]
    file.rename(other := tmp_path / "scores-of-other-weights.jsonl")
    assert DeviceBatches(CPU, finished=other).map(Examples(), 4, sum) == [6, 22, 27]


def test_a_limit_leaves_the_first_examples():
    batches = DeviceBatches(CPU, limit=5)
    assert batches.map(Examples(), 2, list) == [[0, 1], [2, 3], [4]]
    assert batches.first(Examples(), 7) == [*range(7)]
    assert batches.first(Examples(), 20) == [*range(11)]
