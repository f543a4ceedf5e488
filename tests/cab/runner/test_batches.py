"""The order of the data follows from (seed, step)."""

from __future__ import annotations

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

from cab import UserError
from cab.runner.batches import DeviceBatches, Draw, Shares, StepBatches, mix_seed
from cab.runner.processes import Processes


def draws(start: int = 0, seed: int = 3, **shares: int) -> list[Draw]:
    cut = Shares.cut(**{"num_items": 23, "batch_size": 5, "micro_batch_size": None, **shares})  # type: ignore[arg-type]
    order = StepBatches(num_items=23, shares=cut, num_steps=13, seed=seed)
    order.start = start
    return list(order)


def batches(start: int = 0, seed: int = 3) -> list[list[int]]:
    drawn = draws(start, seed)
    assert [draw.number for draw in drawn] == list(range(start, 13))
    return [draw.indices for draw in drawn]


def test_processes_share_the_batches_of_one() -> None:
    alone = draws(batch_size=8, micro_batch_size=2)
    shared = [draws(batch_size=8, micro_batch_size=2, rank=rank, num_processes=2) for rank in (0, 1)]
    assert [draw for pair in zip(*shared, strict=True) for draw in pair] == alone
    whole = draws(batch_size=8)
    for step, draw in enumerate(whole):
        assert draw.indices == [item for piece in alone[4 * step : 4 * step + 4] for item in piece.indices]


def test_micro_batches_are_numbered_over_all_processes() -> None:
    for rank in (0, 1):
        cut = Shares.cut(num_items=23, batch_size=8, micro_batch_size=2, rank=rank, num_processes=2)
        order = StepBatches(num_items=23, shares=cut, num_steps=5, seed=1)
        assert [draw.number for draw in order] == list(range(rank, 20, 2))


@pytest.mark.parametrize(
    ("shares", "accumulate"),
    [
        ({"batch_size": 8, "micro_batch_size": None}, 1),
        ({"batch_size": 8, "micro_batch_size": 2}, 4),
        ({"batch_size": 8, "micro_batch_size": 2, "num_processes": 2}, 2),
        ({"batch_size": 8, "micro_batch_size": 100, "num_processes": 4}, 1),
        ({"batch_size": 50, "micro_batch_size": 4, "num_processes": 2}, 1),
    ],
)
def test_gradients_are_added_up_to_the_batch(shares: dict[str, int], accumulate: int) -> None:
    cut = Shares.cut(num_items=23, **shares)  # type: ignore[arg-type]
    assert cut.accumulate == accumulate
    assert cut.accumulate * cut.num_processes * cut.micro_batch_size == cut.batch_size


@pytest.mark.parametrize(
    "shares",
    [
        {"batch_size": 8, "micro_batch_size": 3},
        {"batch_size": 9, "micro_batch_size": None, "num_processes": 2},
        {"batch_size": 30, "micro_batch_size": None, "num_processes": 24},
    ],
)
def test_batches_that_cannot_be_shared_are_refused(shares: dict[str, int]) -> None:
    with pytest.raises(UserError, match="process"):
        Shares.cut(num_items=23, **shares)  # type: ignore[arg-type]


def test_a_resumed_run_sees_the_batches_it_would_have_seen() -> None:
    whole = batches()
    assert len(whole) == 13
    for start in (1, 4, 5, 12):
        assert batches(start) == whole[start:]


def test_an_epoch_holds_each_item_at_most_once_and_epochs_differ() -> None:
    whole = batches()
    epochs = [whole[0:4], whole[4:8], whole[8:12]]
    for epoch in epochs:
        items = [item for batch in epoch for item in batch]
        assert len(items) == len(set(items)) == 20
    assert epochs[0] != epochs[1] != epochs[2]
    assert batches(seed=4) != whole


def test_a_batch_larger_than_the_data_is_all_of_it() -> None:
    shares = Shares.cut(num_items=3, batch_size=8, micro_batch_size=None)
    order = StepBatches(num_items=3, shares=shares, num_steps=2, seed=0)
    assert [sorted(draw.indices) for draw in order] == [[0, 1, 2], [0, 1, 2]]


def test_processes_share_the_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three threads as processes, in batches of two; the first four examples of eleven were scored earlier."""
    barrier, ranks, exchanged = threading.Barrier(3), threading.local(), [torch.empty(0)] * 3
    file = tmp_path / "scores.json"
    file.write_text(json.dumps([[i, -1.0] for i in range(4)]))
    scored = []

    def all_gather(gathered: list[torch.Tensor], own: torch.Tensor) -> None:
        exchanged[ranks.own] = own
        barrier.wait(10)
        for target, source in zip(gathered, exchanged, strict=True):
            target.copy_(source)
        barrier.wait(10)

    def score(batch: list[int]) -> list[list[float]]:
        scored.append(len(batch))
        return [[i, math.inf] for i in batch]

    class Examples(Dataset[int]):
        def __len__(self) -> int:
            return 11

        def __getitems__(self, indices: list[int]) -> list[int]:
            return indices

    def run(rank: int) -> list[list[float]]:
        ranks.own = rank
        return DeviceBatches(torch.device("cpu"), processes=Processes(rank, 3), partial_scores=file).scores(
            Examples(), 2, score
        )

    monkeypatch.setattr("torch.distributed.all_gather", all_gather)
    with ThreadPoolExecutor(3) as pool:
        results = [*pool.map(run, range(3))]
    assert results == [[[i, -1.0 if i < 4 else math.inf] for i in range(11)]] * 3
    assert json.loads(file.read_text()) == results[0]
    assert sorted(scored) == [1, 1, 1, 2, 2, 2]


def test_mixed_seeds_do_not_collide() -> None:
    assert len({mix_seed(seed, step) for seed in range(100) for step in range(100)}) == 10_000
    assert all(0 <= mix_seed(seed, seed) < 2**63 for seed in range(100))
