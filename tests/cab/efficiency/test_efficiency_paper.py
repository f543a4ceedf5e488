from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cab.efficiency import protocol_paper
from cab.efficiency.protocol_paper import measure_as_paper
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject
from cab.patterns import Pattern
from tests.cab.efficiency.fake_subjects import Fake

SMALL = Setting(batch_size=2, embed_dim=8, num_heads=2, repeats=8)


class Spy(nn.Module):
    """Holds as many numbers as its input has tokens squared, and remembers how it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(10))
        self.calls: list[tuple[int, bool, bool]] = []

    def forward(self, query: Tensor) -> Tensor:
        self.calls.append((query.shape[1], self.training, torch.is_grad_enabled()))
        return query @ query.mT


def test_training_mode_with_dropout_and_the_graph_and_no_call_to_warm_up() -> None:
    spy = Spy()
    subject = Fake("spy", spy)
    list(measure_as_paper(subject, Pattern.NS, [7, 3], SMALL))
    # eight timed calls and one more for the memory, lengths in increasing order
    assert spy.calls == [(3, True, True)] * 9 + [(7, True, True)] * 9
    assert subject.built == [(Pattern.NS, 0.3)] * 2  # a module for each length


def test_time_is_the_mean_of_the_middle_half_first_call_included(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = [100.0, 3.0, 1.0, 2.0, 5.0, 4.0, 7.0, 6.0]
    ticks = iter([tick for at, length in enumerate(durations) for tick in (1000.0 * at, 1000.0 * at + length)])
    monkeypatch.setattr(protocol_paper, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("the paper does not synchronise"))
    (cost,) = measure_as_paper(Fake("spy", Spy()), Pattern.NS, [5], SMALL)
    low, high = np.percentile(durations, [25, 75])
    assert cost.seconds == pytest.approx(np.mean([d for d in durations if low <= d <= high]))
    assert cost.seconds == pytest.approx(4.5)


def test_memory_is_one_peak_for_all_lengths_and_counts_the_weights() -> None:
    small, large = measure_as_paper(Fake("spy", Spy()), Pattern.NS, [6, 31], SMALL)
    assert small.bytes == 4 * (2 * 6 * 6 + 10)
    assert large.bytes == 4 * (2 * 31 * 31 + 10)

    class Shrinking(Spy):
        def forward(self, query: Tensor) -> Tensor:
            return query.new_empty(1000 // query.shape[1])

    first, second = measure_as_paper(Fake("spy", Shrinking()), Pattern.NS, [2, 10], SMALL)
    assert first.bytes == second.bytes == 4 * (500 + 10)


def test_dropout_reaches_a_real_attention() -> None:
    built = []

    class Recorder(AttentionSubject):
        def build(self, pattern: Pattern, setting: Setting, *, dropout: float = 0.0) -> nn.Module:
            built.append(super().build(pattern, setting, dropout=dropout))
            return built[-1]

    (cost,) = measure_as_paper(Recorder("vanilla", "vanilla"), Pattern.NS, [9], SMALL)
    assert cost.status == "ok"
    assert built[0].dropout == 0.3
    assert built[0].training


def test_failure_at_one_length_is_a_status() -> None:
    class Short(Spy):
        def forward(self, query: Tensor) -> Tensor:
            if query.shape[1] > 4:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return query

    costs = list(measure_as_paper(Fake("short", Short()), Pattern.NS, [4, 5], SMALL))
    assert [cost.status for cost in costs] == ["ok", "oom"]
