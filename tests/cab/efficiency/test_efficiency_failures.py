from __future__ import annotations

import resource
import signal
import sys
import time

import psutil
import pytest
import torch
from torch import Tensor, nn

from cab.efficiency.benchmark import Plan, measure
from cab.efficiency.failures import status_of, within_free_memory
from cab.efficiency.protocol_default import measure_length
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject
from cab.patterns import Pattern
from tests.cab.efficiency.fake_subjects import Broken, Fake, Scores


def test_more_than_is_free_raises_and_the_limit_goes_away() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with within_free_memory(), pytest.raises(RuntimeError) as caught:
        torch.empty(2 * psutil.virtual_memory().available, dtype=torch.uint8)
    assert status_of(caught.value) == ("oom", "")
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_other_errors_are_no_lack_of_memory() -> None:
    assert status_of(RuntimeError("expected 3 dimensions")) == ("failed", "RuntimeError: expected 3 dimensions")
    assert status_of(ZeroDivisionError()) == ("failed", "ZeroDivisionError: ")


class Slow(nn.Module):
    def forward(self, query: Tensor) -> Tensor:  # noqa: ARG002
        while True:
            time.sleep(0.01)


class Leaving(nn.Module):
    def forward(self, query: Tensor) -> Tensor:  # noqa: ARG002
        sys.exit(0)


def test_a_module_that_fails_is_a_row_and_the_others_are_measured() -> None:
    greedy = Broken(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 67108864 bytes"), 4)
    modules = {"greedy": greedy, "broken": Broken(ValueError("no"), 2), "slow": Slow(), "leaving": Leaving()}
    subjects = [Fake(label, module) for label, module in {**modules, "vanilla": Scores()}.items()]
    setting = Setting(batch_size=1, embed_dim=8, num_heads=1, repeats=3, time_limit=1.0)
    costs = measure_length(subjects, Pattern.NS, "forward", 16, setting)
    assert [(cost.attention, cost.status, cost.detail) for cost in costs] == [
        ("greedy", "oom", ""),
        ("broken", "failed", "ValueError: no"),
        ("slow", "timeout", "more than --time-limit"),
        ("leaving", "failed", "ExitError: the code called sys.exit(0)"),
        ("vanilla", "ok", ""),
    ]
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_verification_that_raises_concerns_one_attention() -> None:
    def refuse(subject: AttentionSubject, pattern: Pattern) -> str:  # noqa: ARG001
        if subject.name == "eager":
            raise MemoryError("much")
        return ""

    subjects = [AttentionSubject.parse(name) for name in ("vanilla", "eager")]
    setting = Setting(batch_size=1, embed_dim=8, num_heads=1, repeats=1)
    costs = measure(Plan(subjects, [], [Pattern.NS], ["forward"], [8], setting), refuse=refuse)
    found = {cost.attention: (cost.status, cost.detail) for cost in costs}
    assert found["vanilla"] == ("ok", "")
    assert found["eager"] == ("unverified", "verification ended with MemoryError: much")


class ChangesClock(nn.Module):
    def forward(self, query: Tensor) -> Tensor:
        true_time = time.perf_counter
        time.perf_counter = lambda: true_time() / 100
        return query


def test_a_module_that_changes_the_clock_is_a_failed_row() -> None:
    clock = time.perf_counter
    subjects = [Fake("quick", ChangesClock()), Fake("vanilla", Scores())]
    setting = Setting(batch_size=1, embed_dim=8, num_heads=1, repeats=1)
    costs = measure_length(subjects, Pattern.NS, "forward", 16, setting)
    assert [(cost.attention, cost.status) for cost in costs] == [("quick", "failed"), ("vanilla", "ok")]
    assert "replaces the clock" in costs[0].detail
    assert time.perf_counter is clock
