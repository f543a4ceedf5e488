"""The order of the data follows from (seed, step)."""

from __future__ import annotations

from cab.runner.order import StepBatches, mix_seed


def batches(start: int = 0, seed: int = 3) -> list[list[int]]:
    order = StepBatches(num_items=23, batch_size=5, num_batches=13, seed=seed)
    order.start = start
    drawn = list(order)
    assert [draw.step for draw in drawn] == list(range(start, 13))
    return [draw.indices for draw in drawn]


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


def test_seeds_differ() -> None:
    assert batches(seed=3) != batches(seed=4)


def test_a_batch_larger_than_the_data_is_all_of_it() -> None:
    order = StepBatches(num_items=3, batch_size=8, num_batches=2, seed=0)
    assert [sorted(draw.indices) for draw in order] == [[0, 1, 2], [0, 1, 2]]


def test_mixed_seeds_do_not_collide() -> None:
    assert len({mix_seed(seed, step) for seed in range(100) for step in range(100)}) == 10_000
    assert all(0 <= mix_seed(seed, seed) < 2**63 for seed in range(100))
