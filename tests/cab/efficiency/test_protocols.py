"""The protocols on modules of known cost: what is timed and measured, how often, and what becomes of failures."""

import dataclasses
import itertools
import math
import resource
import signal
import time

import psutil
import pytest
import torch
from torch import Tensor, nn

from cab.efficiency import machine, protocols, workload
from cab.efficiency.protocols import Case, measure_as_paper, measure_length, part_ratio
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject, ProjectionsSubject
from cab.efficiency.workload import Workload
from cab.errors import UserError
from cab.patterns import Pattern
from tests.helpers.fake_subjects import Broken, Fake, Scores

SMALL = Setting(batch_size=2, embed_dim=8, num_heads=2, repeats=4)


@pytest.mark.parametrize(("phase", "is_training"), [("forward", False), ("forward+backward", True)])
def test_a_phase_has_its_mode_and_the_memory_of_its_tensors(phase, is_training):
    module = Scores()
    (cost,) = measure_length([Fake("scores", module)], Pattern.NS, phase, 33, SMALL)
    assert module.last == (is_training, is_training, is_training, torch.float32)
    assert module.weight.grad is None
    # the products, and while they exist their row sums; then the output
    least = 4 * 2 * 33 * 33 + 4 * 2 * 33
    assert cost.bytes >= least if is_training else cost.bytes == least
    assert 0 < cost.p10 <= cost.seconds <= cost.p90


@pytest.mark.parametrize(("phase", "kept"), [("forward", (1 + 2 + 2 + 2) / 10), ("decode", 2 / 4)])
def test_pairs_that_a_choice_keeps(phase, kept, monkeypatch):
    """Two of at most four visible keys: 1, 2, 2, 2 of 1, 2, 3, 4 pairs in a row, 2 of 4 in a step."""
    monkeypatch.setattr(workload, "DECODED", 2)
    subjects = [AttentionSubject.parse(name) for name in ("dsa:top_k=2", "linear")]
    costs = measure_length(subjects, Pattern.CS, phase, 4, SMALL)
    assert [cost.pairs_kept for cost in costs] == [pytest.approx(kept), None]


def test_each_round_calls_every_module_once_in_a_random_order():
    log: list[str] = []
    count = 30
    subjects = [Fake(label, Scores(log, label)) for label in "abc"]
    measure_length(subjects, Pattern.NS, "forward", 5, dataclasses.replace(SMALL, repeats=count))
    warm_up, rounds = log[: -3 * count], log[-3 * count :]
    assert warm_up == ["a"] * 4 + ["b"] * 4 + ["c"] * 4  # two to warm up, one for the memory, one to count
    orders = [tuple(rounds[at : at + 3]) for at in range(0, 3 * count, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len(set(orders)) == 6


def test_short_calls_are_repeated_within_a_round(monkeypatch):
    monkeypatch.setattr(protocols, "MAX_CALLS", 100)
    clock = iter(0.001 * tick for tick in range(10**6))
    monkeypatch.setattr(machine, "perf_counter", lambda: next(clock))
    log: list[str] = []
    (cost,) = measure_length([Fake("a", Scores(log, "a"))], Pattern.NS, "forward", 5, SMALL)
    assert len(log) == 4 + SMALL.repeats * math.ceil(protocols.MIN_SECONDS / 0.001)
    assert cost.seconds == pytest.approx(0.001 / 20)


FAILURES = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), 1, "oom", ""),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), 3, "oom", ""),
    (MemoryError(), 5, "oom", ""),
    (UserError("length 5 is not a multiple of 4"), 1, "unsupported", "length 5 is not a multiple of 4"),
    (RuntimeError("shapes\ndiffer"), 3, "failed", "RuntimeError: shapes"),
    (SystemExit(0), 1, "failed", "ExitError: the code called sys.exit(0)"),
]
"""Errors, the number of the call that raises each, and the status and detail of its row."""


def test_those_that_fail_are_statuses_and_the_others_are_measured():
    broken = [Fake(str(number), Broken(*row[:2])) for number, row in enumerate(FAILURES)]
    subjects = [Fake("good", Scores()), *broken, Fake("other", Scores())]
    good, *costs, other = measure_length(subjects, Pattern.NS, "forward", 5, SMALL)
    assert [(cost.status, cost.detail) for cost in costs] == [row[2:] for row in FAILURES]
    assert {(cost.seconds, cost.bytes) for cost in costs} == {(None, None)}
    assert good.status == other.status == "ok"


def test_ratios_are_of_the_same_rounds():
    def case(label: str, samples: list[float], **more: object) -> Case:
        subject = Fake(label, nn.Identity(), **more)
        return Case(subject, Workload(lambda: None), has_projections=True, bytes=10, samples=samples)

    cases = [
        case("projections", [1.0, 2.0, 1.0], kind="projections"),
        case("vanilla", [5.0, 10.0, 9.0]),
        case("local", [2.0, 4.0, 6.0]),
        case("local@slow", [9.0, 9.0, 9.0], kind="third_party", compared_with="local"),
        case("local@quick", [4.0, 6.0, 30.0], kind="third_party", compared_with="local"),
    ]
    local = protocols.compare(cases, Pattern.NS, "forward", 7)[2]
    assert local.relative_to_softmax == pytest.approx(0.4)  # of 0.4, 0.4, 0.67
    assert local.seconds_without_projections == 2.0  # of 1, 2, 5
    assert local.relative_to_softmax_without_projections == pytest.approx(2 / 8)
    assert local.best_third_party == "local@quick"
    assert local.speedup_vs_third_party == pytest.approx(2.0)  # of 2, 1.5, 5
    assert local.speedup_vs_third_party_without_projections == pytest.approx(4 / 2)
    assert local.bytes_ratio == 1.0
    noise = [case("a", [1.0, 2.1, 1.0]), case("b", [0.5, 1.0, 0.9])]
    assert part_ratio(noise[0], noise[1], cases[0]) is None


def test_an_attention_without_query_key_and_value_has_no_projections_to_subtract():
    subjects = [ProjectionsSubject(), *(AttentionSubject.parse(name) for name in ("vanilla", "s4d"))]
    cases = [Case(subject) for subject in subjects]
    for case in cases:
        protocols.prepare(case, Pattern.NS, "forward", 9, SMALL)
    assert [case.has_projections for case in cases] == [True, True, False]


@pytest.mark.parametrize("pattern", [Pattern.CS, Pattern.CC])
@pytest.mark.parametrize("length", [1, 700])
def test_decoding_starts_after_a_prefix_and_counts_the_state(pattern, length, monkeypatch):
    monkeypatch.setattr(workload, "DECODED", 3)
    case = Case(AttentionSubject.parse("vanilla"))
    setting = Setting(batch_size=3, embed_dim=8, num_heads=2, repeats=1)
    protocols.prepare(case, pattern, "decode", length, setting)
    assert case.workload.tokens == 3
    keys_and_values = 2 * 4 * 3 * length * 8
    assert keys_and_values <= case.bytes <= keys_and_values + 3 * length + 8


def test_precision_that_is_not_declared_is_unsupported(monkeypatch):
    module = Scores()
    setting = dataclasses.replace(SMALL, dtype="bfloat16")
    (cost,) = measure_length([Fake("scores", module)], Pattern.NS, "forward", 5, setting)
    assert module.last[3] is torch.bfloat16
    assert cost.status == "ok"
    monkeypatch.setattr(Scores, "autocast_dtypes", (torch.float16,), raising=False)
    (cost,) = measure_length([Fake("scores", module)], Pattern.NS, "forward", 5, setting)
    assert cost.status == "unsupported"


def test_a_row_names_the_kernels_that_ran():
    """Of another package nothing is counted, whatever other regions of a profile there are."""

    class Profiled(Scores):
        def forward(self, query: Tensor) -> Tensor:
            with torch.profiler.record_function(self.label):
                return super().forward(query)

    subjects = [Fake(region, Profiled(label=region)) for region in ("scores", "kernels of some-package")]
    costs = measure_length(subjects, Pattern.NS, "forward", 9, SMALL)
    assert [(cost.kernels, cost.flops is None) for cost in costs] == [("", False), ("some-package", True)]


def test_more_than_is_free_raises_and_the_limit_goes_away():
    before = resource.getrlimit(resource.RLIMIT_AS)
    with protocols.within_free_memory(), pytest.raises(RuntimeError) as caught:
        torch.empty(2 * psutil.virtual_memory().available, dtype=torch.uint8)
    assert protocols.status_of(caught.value) == ("oom", "")
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_module_that_takes_too_long_is_a_row_and_the_others_are_measured():
    class Slow(nn.Module):
        def forward(self, **_: Tensor) -> None:
            time.sleep(60)

    setting = Setting(batch_size=1, embed_dim=8, num_heads=1, repeats=2, time_limit=0.5)
    slow, other = measure_length([Fake("a", Slow()), Fake("b", Scores())], Pattern.NS, "forward", 16, setting)
    assert (slow.status, slow.detail, other.status) == ("timeout", "more than --time-limit", "ok")
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


EIGHT_CALLS = dataclasses.replace(SMALL, repeats=8)


class Spy(nn.Module):
    """Holds as many numbers as its input has tokens squared, and remembers how it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(10))
        self.calls: list[tuple[int, bool, bool]] = []

    def forward(self, query: Tensor) -> Tensor:
        self.calls.append((query.shape[1], self.training, torch.is_grad_enabled()))
        return query @ query.mT


def test_training_mode_with_dropout_and_the_graph_and_no_call_to_warm_up_but_one_for_the_memory():
    spy = Spy()
    subject = Fake("spy", spy)
    small, large = measure_as_paper(subject, Pattern.NS, [7, 3], EIGHT_CALLS)
    # eight timed calls and one more for the memory, lengths in increasing order
    assert spy.calls == [(3, True, True)] * 9 + [(7, True, True)] * 9
    assert subject.built == [(Pattern.NS, 0.3)] * 2  # a module for each length
    assert [small.bytes, large.bytes] == [4 * (2 * n * n + 10) for n in (3, 7)]  # with the weights


def test_time_is_the_mean_of_the_middle_half_first_call_included(monkeypatch):
    durations = [100.0, 3.0, 1.0, 2.0, 5.0, 4.0, 7.0, 6.0]
    ticks = iter([tick for at, length in enumerate(durations) for tick in (1000.0 * at, 1000.0 * at + length)])
    monkeypatch.setattr(protocols, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("the paper does not synchronise"))
    (cost,) = measure_as_paper(Fake("spy", Spy()), Pattern.NS, [5], EIGHT_CALLS)
    assert cost.seconds == pytest.approx(4.5)  # of 3, 4, 5 and 6, within the quartiles


def test_memory_is_one_peak_for_all_lengths():
    class Shrinking(Spy):
        def forward(self, query: Tensor) -> Tensor:
            return query.new_empty(1000 // query.shape[1])

    first, second = measure_as_paper(Fake("spy", Shrinking()), Pattern.NS, [2, 10], EIGHT_CALLS)
    assert first.bytes == second.bytes == 4 * (500 + 10)


def test_failure_at_one_length_is_a_status():
    module = Broken(torch.OutOfMemoryError("CUDA out of memory"), 10)  # nine calls per length
    costs = list(measure_as_paper(Fake("short", module), Pattern.NS, [4, 5], EIGHT_CALLS))
    assert [cost.status for cost in costs] == ["ok", "oom"]


def test_a_stack_has_the_costs_of_its_mean_layer(monkeypatch):
    """Of four layers, each call takes a quarter of its time; the options of Appendix G apply to each part."""
    monkeypatch.setattr(workload, "DECODED", 2)
    stack = AttentionSubject.parse("linear*3,local:local.window_size=4")
    parts = [AttentionSubject.parse(name) for name in ("linear", "local:window_size=4")]
    linear, local, mean = (measure_length([subject], Pattern.CS, "decode", 16, SMALL)[0] for subject in (*parts, stack))
    assert mean.bytes == (3 * linear.bytes + local.bytes) // 4
    assert mean.flops == pytest.approx((3 * linear.flops + local.flops) / 4, rel=0.1)
    ticks = itertools.count()
    monkeypatch.setattr(machine, "perf_counter", lambda: next(ticks))
    cost, *_ = measure_length([stack], Pattern.CS, "forward", 16, SMALL)
    assert cost.seconds == pytest.approx(0.25)
