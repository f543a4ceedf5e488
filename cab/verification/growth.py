"""Growth checks: training and inference cost grow with length no faster than the declared complexity."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, product
from time import perf_counter, process_time

import torch

from cab.verification.check import Measurements, check
from cab.verification.compare import Operations
from cab.verification.entries import initial_state, read_chunks
from cab.verification.inputs import Inputs, Module
from cab.verification.subject import Subject

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise torch's profiler writes to stderr

SHORTEST, LONGEST, LONGEST_QUADRATIC = 512, 8192, 2048
"""Lengths double from the first value up to the second or third, or until a call exceeds 0.12 seconds."""

EXPONENTS = {"1": 1.0, "n": 1.0, "n log n": 1.0, "n sqrt n": 1.5, "n^2": 2.0}
"""Exponent of the length in each complexity; at least 1, because the output has n rows."""

TIME_SLACK, MEMORY_SLACK = 1.4, 1.1
"""Factors on the exponent: caches make time grow faster than the operation count; byte counts are exact."""


MODES = {"in training": True, "in evaluation": False}

growth_check = partial(check, "growth", declared_in="complexity")


@growth_check("growth exponent of the run time", limit=lambda s: allowed(s, TIME_SLACK), is_quick=False, is_timed=True)
def time_growth(subject: Subject) -> Measurements:
    """Run time in training and in evaluation grows with length no faster than the declared complexity."""
    for mode, training in MODES.items():
        tries: list[tuple[float, str]] = []
        while not tries or (len(tries) < 3 and min(tries)[0] > allowed(subject, TIME_SLACK)):
            tries.append(_time_power(subject, training=training))  # other load can distort one measurement
        power, where = min(tries)
        yield power, f"{where}, {mode}"


@growth_check("growth exponent of the peak memory", limit=lambda s: allowed(s, MEMORY_SLACK), is_quick=False)
def memory_growth(subject: Subject) -> Measurements:
    """Peak memory in training and in evaluation grows with length no faster than the declared complexity."""
    for (mode, training), padding in product(MODES.items(), ("", "left")):
        calls = _calls(subject, lengths(subject)[-3:], training=training, padding=padding)
        power, where = _power({n: float(peak_bytes(call, subject.device)) for n, call in calls}, "MiB", 2**-20)
        yield power, f"{where}, {mode}{padding and ' with padding'}"


@growth_check("growth exponent of a decoding step", limit=lambda s: allowed_in_steps(s), applies=lambda s: s.prefills)
def step_growth(subject: Subject) -> Measurements:
    """State, memory and work of a decoding step grow linearly at most; with a declared constant state, not at all."""
    module = subject.build(embed_dim=16, num_heads=2)
    amounts: dict[str, dict[int, float]] = defaultdict(dict)
    for length in (64, 256, 1024, 2048) if subject.long else (64, 256, 1024):
        inputs = subject.draw(module, length + 2, 16, batch=1)
        with torch.no_grad():
            _, state = read_chunks(module, inputs, [length, 1], initial_state(module, inputs))
            step = partial(module.step, inputs.query[:, -1], state)
            amounts["state"][length] = max(1, sum(x.nbytes for x in state.values()))
            amounts["peak memory"][length] = max(1, peak_bytes(step, subject.device))
            counts = [1]
            with Operations(lambda func, *x, to=counts: to.extend(t.numel() for t in chain(*x) if not func.is_view)):
                step()
            amounts["values read and written"][length] = sum(counts)
    if subject.has_constant_size_state:
        growth = amounts["state"][1024] / amounts["state"][64] - 1.0
        yield growth, "state at n=64 and n=1024", 0.0, "the decoding state is not of constant size"
    for quantity, measured in amounts.items():
        power, where = _power(measured, *(("", 1.0) if "values" in quantity else ("KiB", 2**-10)))
        yield power, f"{quantity}, {where}", None, f"the {quantity} of a decoding step grows with the position"


def allowed(subject: Subject, slack: float) -> float:
    """Return the largest exponent that the declared complexity admits; infinite if none is declared."""
    if subject.complexity is None:
        return math.inf
    logarithm = 0.15 if "log" in subject.complexity else 0.0  # as an exponent at these lengths
    return slack * EXPONENTS[subject.complexity] + logarithm


def allowed_in_steps(subject: Subject) -> float:
    """Return the largest exponent of a decoding step; a step that reads the whole prefix again has that of a call."""
    if subject.has_constant_size_state:
        return 0.1
    return allowed(subject, MEMORY_SLACK) if subject.stores_prefix and not subject.pattern.is_cross else MEMORY_SLACK


def lengths(subject: Subject) -> list[int]:
    """Return the measured lengths."""
    longest = LONGEST_QUADRATIC if subject.complexity == "n^2" else LONGEST
    longest *= 1 if subject.device == "cpu" else 8  # launch overhead hides quadratic cost at short lengths
    return [SHORTEST << i for i in range((longest // SHORTEST).bit_length())]


def _calls(
    subject: Subject, lengths: Iterable[int], *, training: bool, padding: str = ""
) -> Iterator[tuple[int, Callable[[], object]]]:
    """Yield calls of one module with one row, with padding if there is any, at several lengths."""
    module = subject.build(num_heads=1).train(training)
    for length in lengths:
        inputs = subject.draw(module, length, length, batch=2, padding=padding).rows([1])  # row 0 has no padding
        yield length, partial(_run, module, inputs)


def _run(module: Module, inputs: Inputs) -> None:
    with torch.set_grad_enabled(module.training):
        total = inputs.requiring_grad().run(module).sum()
    if module.training:
        total.backward()
        module.zero_grad()


def _time_power(subject: Subject, *, training: bool) -> tuple[float, str]:
    """Return the growth exponent of time and the measured times; each is the fastest of up to three calls."""
    costs: dict[int, float] = {}
    for length, call in _calls(subject, [SHORTEST, *lengths(subject)], training=training):  # the first call is slow
        costs[length] = _seconds(call, subject.device)
        if costs[length] > 0.12 and len(costs) >= 3:
            break
        costs[length] = min(costs[length], *(_seconds(call, subject.device) for _ in range(2)))
    return _power(costs, "ms", 1e3)


def _seconds(call: Callable[[], object], device: str) -> float:
    """Return the CPU time of a call in seconds; on a GPU, the wall time until its kernels finish."""
    is_cpu = device == "cpu"
    clock, wait = (process_time, lambda: None) if is_cpu else (perf_counter, partial(torch.cuda.synchronize, device))
    wait()
    start = clock()
    call()
    wait()
    return clock() - start


def _power(costs: dict[int, float], unit: str, factor: float) -> tuple[float, str]:
    """Return the slope of log cost over log length for the three longest lengths, and the costs as text.

    The slope of the two longest is returned if it is smaller: a constant part distorts the cost of the shortest.
    """
    last = sorted(costs)[-3:]
    end = last[-1]
    power = min(math.log2(costs[end] / costs[start]) / math.log2(end / start) for start in last[:-1])
    return max(power, 0.0), "n=" + ", ".join(f"{length}: {costs[length] * factor:.3g} {unit}" for length in last)


def peak_bytes(call: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Return the peak number of bytes allocated for tensors during ``call``, above the amount allocated before it.

    Includes outputs, saved activations and temporaries. Excludes inputs and weights that exist before the call, and
    scratch space inside BLAS and FFT libraries.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        allocated = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - allocated
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        result = call()  # keep the result alive until the last event is recorded
    del result
    assert profile.profiler is not None
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    current = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return peak
