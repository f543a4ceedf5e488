"""The default protocol: warm-up, synchronization, interleaved rounds, medians with percentiles, peak reset."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch

from cab.efficiency.cost import Cost
from cab.efficiency.failures import guarded, release_memory, status_of
from cab.efficiency.operations import Operations, count_operations
from cab.efficiency.packed import padded_label
from cab.efficiency.roofline import Machine
from cab.efficiency.setting import DTYPES, Setting
from cab.efficiency.subjects import BASELINES, PROJECTIONS, Subject, has_projections
from cab.efficiency.timing import check_clock, seconds
from cab.efficiency.workload import PHASES, Workload
from cab.errors import UserError
from cab.patterns import Pattern
from cab.verification.growth import peak_bytes

MIN_SECONDS = 0.02
"""Minimum duration of a subject's calls in a round."""

MAX_CALLS = 100


@dataclass
class Case:
    """One subject at one length: workload, samples, and status if it is not measured."""

    subject: Subject
    workload: Workload | None = None
    has_projections: bool = False
    bytes: int | None = None
    operations: Operations | None = None
    calls: int = 1
    samples: list[float] = field(default_factory=list)
    status: str = "ok"
    detail: str = ""
    spent: float = 0.0
    """Seconds of all attempts."""

    def fail(self, error: BaseException) -> None:
        """Record the status of ``error`` and discard the measurements."""
        self.status, self.detail = status_of(error)
        self.workload, self.bytes, self.samples = None, None, []


def measure_length(
    subjects: Sequence[Subject],
    pattern: Pattern,
    phase: str,
    length: int,
    setting: Setting,
    *,
    machine: Machine | None = None,
    seed: int = 0,
) -> list[Cost]:
    """Measure all ``subjects`` at one length in interleaved rounds, each in random order.

    Args:
        subjects: attentions, projections and third-party implementations.
        pattern: the pattern.
        phase: the phase.
        length: number of tokens.
        setting: sizes, device and precision.
        machine: sampled in every round, if given.
        seed: seed of the order.
    """
    cases = [Case(subject) for subject in subjects]
    for case in cases:
        attempt(case, partial(prepare, case, pattern, phase, length, setting), setting)
    order = random.Random(f"{seed} {pattern} {phase} {length}")
    for _ in range(setting.repeats):
        if machine is not None:
            machine.sample()
        for case in order.sample(cases, len(cases)):
            if case.workload is not None:
                attempt(case, partial(sample, case, setting), setting)
    return compare(cases, pattern, phase, length)


def attempt(case: Case, action: Callable[[], object], setting: Setting) -> None:
    """Run ``action``; an exception becomes the status of ``case``."""
    begin = perf_counter()
    try:
        with guarded(setting.device, setting.time_limit - case.spent):
            action()
            check_clock()
    except Exception as error:  # a failing attention must not abort the benchmark
        case.fail(error)
    case.spent += perf_counter() - begin
    if case.workload is None:  # outside the handler, whose frames hold tensors
        release_memory(setting.device)


def prepare(case: Case, pattern: Pattern, phase: str, length: int, setting: Setting) -> None:
    """Build the module, warm up with two calls, and measure peak memory and operations in one more call each."""
    torch.manual_seed(0)
    module = case.subject.build(pattern, setting).to(setting.device)
    supported = getattr(module, "autocast_dtypes", tuple(DTYPES.values()))
    if setting.torch_dtype is not torch.float32 and setting.torch_dtype not in supported:
        raise UserError(f"does not support {setting.dtype} under autocast")
    case.has_projections = has_projections(module)
    case.workload = getattr(case.subject, "phases", PHASES)[phase](module, pattern, length, setting)
    case.workload.call()
    once = seconds(case.workload.call, 1, setting.device)
    case.calls = min(MAX_CALLS, max(1, math.ceil(MIN_SECONDS / max(once, 1e-9))))
    state = case.workload.state_bytes
    case.bytes = peak_bytes(case.workload.call, setting.device) if state is None else state
    with contextlib.suppress(Exception):  # kernels that cannot be traced are timed without a roofline
        case.operations = count_operations(case.workload.counted)


def sample(case: Case, setting: Setting) -> None:
    """Record the time of one round in seconds per call, or per token when decoding."""
    assert case.workload is not None
    case.samples.append(seconds(case.workload.call, case.calls, setting.device) / (case.calls * case.workload.tokens))


def compare(cases: Sequence[Case], pattern: Pattern, phase: str, length: int) -> list[Cost]:
    """Return the costs, relative to baseline, projections and the fastest third-party implementation."""
    measured = {case.subject.label: case for case in cases if case.workload is not None}
    baseline, projections = measured.get(BASELINES[0]), measured.get(PROJECTIONS)
    costs = []
    for case in cases:
        label, complexity = case.subject.label, getattr(case.subject, "complexity", "")
        cost = Cost(label, str(pattern), phase, length, kind=case.subject.kind, complexity=complexity)
        facts: dict[str, Any] = {"status": case.status, "detail": case.detail}
        if case.workload is not None:
            p10, median, p90 = (float(np.percentile(case.samples, at)) for at in (10, 50, 90))
            facts |= {"seconds": median, "bytes": case.bytes, "p10": p10, "p90": p90}
            facts["relative_to_softmax"] = ratio(case.samples, baseline.samples if baseline else None)
            facts["relative_to_softmax_without_projections"] = part_ratio(case, baseline, projections)
            facts["kernels"] = " ".join(sorted(case.operations.foreign)) if case.operations else ""
            facts |= work(case.workload, case.operations)
            if rival := fastest_implementation(case, measured):
                facts["best_third_party"] = rival.subject.label
                facts["speedup_vs_third_party"] = ratio(rival.samples, case.samples)
                facts["speedup_vs_third_party_without_projections"] = part_ratio(rival, case, projections)
                facts["bytes_ratio"] = ratio([case.bytes or 0], [rival.bytes or 0])
            if padded := measured.get(padded_label(label)):
                facts["speedup_vs_padded"] = ratio(padded.samples, case.samples)
                facts["bytes_vs_padded"] = ratio([case.bytes or 0], [padded.bytes or 0])
        costs.append(dataclasses.replace(cost, **facts))
    return costs


def work(workload: Workload, operations: Operations | None) -> dict[str, int]:
    """Return operations and memory traffic per call, or per token when decoding; empty if any are not counted."""
    if operations is None or operations.unknown or operations.foreign:
        return {}
    return {
        "flops": workload.passes * operations.flops // workload.tokens,
        "product_flops": workload.passes * operations.products // workload.tokens,
        "least_bytes": workload.least_bytes,
        "moved_bytes": operations.moved // workload.tokens,
    }


def fastest_implementation(case: Case, measured: Mapping[str, Case]) -> Case | None:
    """Return the third-party implementation of this attention with the smallest median."""
    label = case.subject.label
    others = [other for other in measured.values() if getattr(other.subject, "compared_with", "") == label]
    return min(others, key=lambda other: float(np.median(other.samples)), default=None)


def attention_seconds(case: Case, projections: Case) -> list[float]:
    """Return the seconds of the attention part per round: total minus projections."""
    if not case.has_projections:
        return case.samples
    return [whole - maps for whole, maps in zip(case.samples, projections.samples, strict=True)]


def ratio(above: Sequence[float] | None, below: Sequence[float] | None) -> float | None:
    """Return the median over rounds of above / below; None if one is missing."""
    if above is None or below is None:
        return None
    return float(np.median([a / b for a, b in zip(above, below, strict=True)]))


def part_ratio(above: Case | None, below: Case | None, projections: Case | None) -> float | None:
    """Return the ratio of the attention parts, medians over rounds; None if one is not positive due to noise."""
    if above is None or below is None or projections is None:
        return None
    over, under = (float(np.median(attention_seconds(case, projections))) for case in (above, below))
    return over / under if min(over, under) > 0 else None
