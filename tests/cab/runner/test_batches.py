"""The order of the data follows from (seed, step)."""

import pytest

from cab import UserError
from cab.runner.batches import Draw, Shares, StepBatches, mix_seed


def draws(start: int = 0, seed: int = 3, **shares: int) -> list[Draw]:
    cut = Shares.cut(**{"num_items": 23, "batch_size": 5, "micro_batch_size": None, **shares})
    order = StepBatches(num_items=shares.get("num_items", 23), shares=cut, num_steps=13, seed=seed)
    order.start = start
    return list(order)


def test_processes_share_the_batches_of_one():
    alone = draws(batch_size=8, micro_batch_size=2)
    shared = [draws(batch_size=8, micro_batch_size=2, rank=rank, num_processes=2) for rank in (0, 1)]
    assert [draw for pair in zip(*shared, strict=True) for draw in pair] == alone
    assert [draw.number for draw in alone] == list(range(52))
    for step, draw in enumerate(draws(batch_size=8)):
        assert draw.indices == [item for piece in alone[4 * step : 4 * step + 4] for item in piece.indices]


@pytest.mark.parametrize(
    ("batch", "micro", "processes", "accumulate"),
    [(8, None, 1, 1), (8, 2, 1, 4), (8, 2, 2, 2), (8, 100, 4, 1), (50, 4, 2, 1)],
)
def test_gradients_are_added_up_to_the_batch(batch, micro, processes, accumulate):
    cut = Shares.cut(num_items=23, batch_size=batch, micro_batch_size=micro, num_processes=processes)
    assert cut.accumulate == accumulate
    assert cut.accumulate * cut.num_processes * cut.micro_batch_size == cut.batch_size


@pytest.mark.parametrize(("batch", "micro", "processes"), [(8, 3, 1), (9, None, 2), (30, None, 24)])
def test_batches_that_cannot_be_shared_are_refused(batch, micro, processes):
    with pytest.raises(UserError, match="process"):
        Shares.cut(num_items=23, batch_size=batch, micro_batch_size=micro, num_processes=processes)


def test_a_resumed_run_sees_the_batches_it_would_have_seen():
    whole = draws()
    assert [draw.number for draw in whole] == list(range(13))
    for start in (1, 4, 5, 12):
        assert draws(start) == whole[start:]


def test_an_epoch_holds_each_item_at_most_once_and_epochs_and_seeds_differ():
    whole = [draw.indices for draw in draws()]
    epochs = [[item for batch in whole[start : start + 4] for item in batch] for start in (0, 4, 8)]
    assert [len(set(epoch)) for epoch in epochs] == [20] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    assert draws(seed=4) != draws()


def test_a_batch_larger_than_the_data_is_all_of_it():
    assert [sorted(draw.indices) for draw in draws(num_items=3, batch_size=8)] == [[0, 1, 2]] * 13


def test_mixed_seeds_do_not_collide():
    assert len({mix_seed(seed, step) for seed in range(100) for step in range(100)}) == 10_000
    assert all(0 <= mix_seed(seed, seed) < 2**63 for seed in range(100))
