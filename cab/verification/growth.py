"""Growth: time and memory of training grow with length no faster than the class declares."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from cab.verification.check import Worst, check
from cab.verification.inputs import Module
from cab.verification.memory import peak_bytes
from cab.verification.subject import Subject

SHORTEST, LONGEST, LONGEST_QUADRATIC = 512, 8192, 2048
"""Lengths double from the first to one of the others, or until a call takes longer than ``ENOUGH`` seconds."""

ON_A_GPU = 8
"""Times as long: a GPU hides a quadratic part longer behind the start of its kernels."""

ENOUGH = 0.12

EXPONENTS = {"1": 1.0, "n": 1.0, "n log n": 1.0, "n sqrt n": 1.5, "n^2": 2.0}
"""Power of the length in each complexity. The output alone has n rows, so nothing is cheaper than n."""

LOG_SLACK = 0.15
"""Power that stands for a logarithm at these lengths."""

TIME_SLACK, MEMORY_SLACK = 1.4, 1.1
"""Factor on the power: caches make time grow faster than the work, bytes are exact."""

ATTEMPTS = 3
"""A busy machine makes one measurement of time grow too fast now and then, hardly three."""


@check("growth", is_quick=False, is_timed=True)
def time_growth(subject: Subject) -> Worst:
    """Time in training and in evaluation grows with length no faster than the declared complexity."""
    limit = allowed(subject, TIME_SLACK)
    worst = Worst("power of the length with which time grows is", limit=limit)
    for mode, phase in PHASES.items():
        power, where = _time_power(subject, phase)
        for _ in range(ATTEMPTS - 1):
            if power > limit:
                power, where = min((power, where), _time_power(subject, phase))
        worst.add(power, f"{where}, {mode}")
    return worst


@check("growth", is_quick=False)
def memory_growth(subject: Subject) -> Worst:
    """Peak memory in training and in evaluation grows with length no faster than the declared complexity."""
    worst = Worst("power of the length with which memory grows is", limit=allowed(subject, MEMORY_SLACK))
    for mode, phase in PHASES.items():
        module = _module(subject)
        costs = {n: float(peak_bytes(partial(phase, subject, module, n), subject.device)) for n in lengths(subject)}
        power, where = _power(costs, "MiB", 2**-20)
        worst.add(power, f"{where}, {mode}")
    return worst


Phase = Callable[[Subject, Module, int], None]


def allowed(subject: Subject, slack: float) -> float:
    """Largest power that the declared complexity admits; infinite when none is declared."""
    if subject.complexity is None:
        return math.inf
    return slack * EXPONENTS[subject.complexity] + (LOG_SLACK if "log" in subject.complexity else 0.0)


def lengths(subject: Subject) -> Iterator[int]:
    length, longest = SHORTEST, LONGEST_QUADRATIC if subject.complexity == "n^2" else LONGEST
    while length <= (longest if subject.device == "cpu" else ON_A_GPU * longest):
        yield length
        length *= 2


def _module(subject: Subject) -> Module:
    return subject.build(num_heads=1).train()


def _train(subject: Subject, module: Module, length: int) -> None:
    output = subject.draw(module, length, length, batch=1).requiring_grad().run(module.train())
    output.sum().backward()
    module.zero_grad()


@torch.no_grad()
def _evaluate(subject: Subject, module: Module, length: int) -> None:
    subject.draw(module, length, length, batch=1).run(module.eval())


PHASES = {"in training": _train, "in evaluation": _evaluate}


def _time_power(subject: Subject, phase: Phase) -> tuple[float, str]:
    """The power between the longest lengths; the fastest of three calls at each, of one that is slow."""
    module = _module(subject)
    costs: dict[int, float] = {}
    phase(subject, module, SHORTEST)
    for length in lengths(subject):
        call = partial(phase, subject, module, length)
        costs[length] = _seconds(call, subject.device)
        if costs[length] > ENOUGH and len(costs) >= 3:
            break
        costs[length] = min(costs[length], *(_seconds(call, subject.device) for _ in range(2)))
    return _power(costs, "ms", 1e3)


def _seconds(call: Callable[[], object], device: str) -> float:
    """Processor time of a call, which other processes hardly change; on a GPU the time until it is done."""
    if device != "cpu":
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        call()
        torch.cuda.synchronize(device)
        return time.perf_counter() - start
    start = time.process_time()
    call()
    return time.process_time() - start


def _power(costs: dict[int, float], unit: str, factor: float) -> tuple[float, str]:
    """Slope of log cost over log length between the longest three lengths, and the costs in words."""
    last = sorted(costs)[-3:]
    power = math.log2(costs[last[-1]] / costs[last[0]]) / math.log2(last[-1] / last[0])
    return max(power, 0.0), "n=" + ", ".join(f"{length}: {costs[length] * factor:.3g} {unit}" for length in last)
