"""The protocols: how the time and memory of modules are measured.

The default protocol has warm-up, synchronization, interleaved rounds, medians with percentiles and a peak per length.

The paper's protocol, as released, mostly measures the launch of kernels on a GPU: wall clock without synchronization
and warm-up; mean of the calls between the 25th and 75th percentile; training mode with dropout and recorded graph, but
no backward pass; a new module per length; peak memory over all lengths so far, including weights. Attentions are
measured one after another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import random
import re
import resource
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from cab import kernels
from cab.composite import count_layers
from cab.efficiency.cost import BUSY_SHARE, DECODING_PHASES, LAUNCH_BOUND, Cost
from cab.efficiency.gpu import power_and_energy
from cab.efficiency.machine import Machine, launch_seconds, seconds
from cab.efficiency.operations import Operations, count_operations
from cab.efficiency.packed import padded_label
from cab.efficiency.setting import DTYPES, Setting, appendix_g
from cab.efficiency.subjects import PROJECTIONS, SOFTMAX_LABELS, AttentionSubject, Measurable, has_projections
from cab.efficiency.workload import DECODED, PHASES, Inputs, Workload, held_bytes, make_inputs
from cab.errors import UserError, exits_as_errors, first_line, is_out_of_memory
from cab.patterns import Pattern
from cab.verification.growth import peak_bytes

# --- limits and failures of calls ------------------------------------------------------------------------------------


@contextlib.contextmanager
def guarded(device: str, limit: float) -> Iterator[None]:
    """Raise an exception inside the block for excessive allocations on a CPU, ``sys.exit``, or after the time limit.

    TimeoutError is raised once the running operator returns.
    """
    import torch._dynamo  # noqa: F401 - for `set_stance`; an alarm during this import would leave sympy half imported

    def stop(*_: object) -> None:
        raise TimeoutError("more than --time-limit")

    if limit <= 0:
        stop()
    memory = within_free_memory() if device == "cpu" else contextlib.nullcontext()
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        with exits_as_errors(), memory:
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


@contextlib.contextmanager
def within_free_memory() -> Iterator[None]:
    """Limit the process to 90% of the free memory, so that an excessive allocation raises an exception."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = psutil.Process().memory_info().vms + int(0.9 * psutil.virtual_memory().available)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def release_memory(device: str) -> None:
    """Free the memory of dropped tensors, so that the next module can allocate it."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def status_of(error: BaseException) -> tuple[str, str]:
    """Return the status of a cost and a one-line detail."""
    line = first_line(error)
    if is_out_of_memory(error):
        return "oom", ""
    if isinstance(error, TimeoutError):
        return "timeout", line
    if isinstance(error, UserError):
        return "unsupported", line
    return "failed", f"{type(error).__name__}: {line}"


# --- the default protocol ---------------------------------------------------------------------------------------------

MIN_SECONDS, MAX_CALLS = 0.02, 100
"""Minimum duration of a subject's calls in a round, and maximum number of them."""


@dataclass
class Case:
    """One subject at one length: workload, samples, and status if it is not measured."""

    subject: Measurable
    workload: Workload | None = None
    has_projections: bool = False
    bytes: int | None = None
    operations: Operations | None = None
    calls: int = 1
    samples: list[float] = field(default_factory=list)
    launches: list[tuple[float, float]] = field(default_factory=list)
    """On CUDA, seconds of one call per round until its kernels are queued, and until they have ended."""
    kernel_seconds: float = 0.0
    """On CUDA, seconds of the kernels of one call."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further columns of the cost."""
    status: str = "ok"
    detail: str = ""
    spent: float = 0.0
    """Seconds of all attempts."""

    @property
    def backend(self) -> str | None:
        return getattr(self.subject, "backend", "") or None


def measure_length(
    subjects: Sequence[Measurable],
    pattern: Pattern,
    phase: str,
    length: int,
    setting: Setting,
    *,
    machine: Machine | None = None,
) -> list[Cost]:
    """Measure all ``subjects`` at one length in interleaved rounds, each in random order, with ``machine`` if given."""
    cases = [Case(subject) for subject in subjects]
    for case in cases:
        attempt(case, partial(prepare, case, pattern, phase, length, setting), setting)
    order = random.Random(f"0 {pattern} {phase} {length}")
    for _ in range(setting.repeats):
        if machine is not None:
            machine.sample()
        for case in order.sample(cases, len(cases)):
            if case.workload is not None:
                attempt(case, partial(sample, case, setting), setting)
    if machine is not None and setting.device == "cuda":
        for case in cases:
            judge(case, machine)
    return compare(cases, pattern, phase, length)


def warm_up(
    subjects: Iterable[Measurable], pattern: Pattern, phase: str, lengths: Iterable[int], setting: Setting
) -> None:
    """Call every subject once at every length: the first call of a shape compiles and tunes kernels."""
    for length in lengths:
        for subject in subjects:
            case = Case(subject)
            attempt(case, partial(build, case, pattern, phase, length, setting), setting)
            del case
        release_memory(setting.device)


def attempt(case: Case, action: Callable[[], object], setting: Setting) -> None:
    """Run ``action``; an exception becomes the status of ``case``."""
    begin = perf_counter()
    try:
        with guarded(setting.device, setting.time_limit - case.spent), kernels.use(case.backend):
            action()
    except Exception as error:  # a failing attention must not abort the benchmark
        case.status, case.detail = status_of(error)
        case.workload = None
    case.spent += perf_counter() - begin
    if case.workload is None:  # outside the handler, whose frames hold tensors
        release_memory(setting.device)


def build(case: Case, pattern: Pattern, phase: str, length: int, setting: Setting) -> nn.Module:
    """Build the module and its workload, and call it once; UserError if a named backend computes none of it."""
    torch.manual_seed(0)
    module = case.subject.build(pattern, setting).to(setting.device)
    supported = getattr(module, "autocast_dtypes", tuple(DTYPES.values()))
    if setting.torch_dtype is not torch.float32 and setting.torch_dtype not in supported:
        raise UserError(f"does not support {setting.dtype} under autocast")
    case.has_projections = has_projections(module)
    if setting.compile:
        compile_calls(module)
    case.workload = (getattr(case.subject, "phases", {}) or PHASES)[phase](module, pattern, length, setting)
    with kernels.used() as uses:  # by the replay of a graph, none is called
        (case.workload.counted if phase.endswith("-graph") else case.workload.call)()
    if case.backend and case.backend not in uses.names:
        operations = ", ".join(uses.counts) or "none"
        raise UserError(f"{case.backend} computes none of its operations ({operations})")
    case.facts["backends"] = "; ".join(
        f"{name}={'+'.join(counts)}{''.join(f' ({other}: {why})' for other, why in uses.refusals[name].items())}"
        for name, counts in uses.counts.items()
    )
    most_keys: Callable[[int], int] | None = getattr(module, "most_keys", None)
    if most_keys is not None:
        visible = range(1, length + 1) if pattern is Pattern.CS and phase not in DECODING_PHASES else (length,)
        case.facts["pairs_kept"] = sum(map(most_keys, visible)) / sum(visible)
    return module


def compile_calls(module: nn.Module) -> None:
    """Compile the calls of the module for their shapes; the limits would end in calls that are not compiled."""
    config = torch._dynamo.config
    config.recompile_limit = config.accumulated_recompile_limit = 10**6  # all modules share the code of Module
    module.compile(dynamic=False)


def prepare(case: Case, pattern: Pattern, phase: str, length: int, setting: Setting) -> None:
    """Build the module, warm up with two calls, and measure peak memory and operations in one more call each.

    On CUDA, also profile a call and measure the power of repeated ones.
    """
    module = build(case, pattern, phase, length, setting)
    assert case.workload is not None
    once = seconds(case.workload.call, 1, setting.device)
    case.calls = min(MAX_CALLS, max(1, math.ceil(MIN_SECONDS / max(once, 1e-9))))
    state = case.workload.state_bytes
    case.bytes = peak_bytes(case.workload.call, setting.device) if state is None else state
    layers = count_layers(module)  # costs of a stack are those of its mean layer; without gradients, one runs at a time
    case.bytes //= 1 if phase == "forward" else layers
    tokens, least = layers * case.workload.tokens, case.workload.least_bytes // layers
    case.workload = dataclasses.replace(case.workload, tokens=tokens, least_bytes=least)
    # Products in a Triton kernel are not counted: those of the reference are. Without a name, the kernel refuses.
    counted = kernels.use(None if case.backend == "triton" else case.backend)
    stance = torch.compiler.set_stance("force_eager" if setting.compile else "default")
    with contextlib.suppress(Exception), stance, counted:
        case.operations = count_operations(case.workload.counted)  # kernels that it cannot trace have no roofline
    if setting.device == "cuda":
        with contextlib.suppress(RuntimeError):  # the driver permits neither profiles nor power readings everywhere
            observe(case, setting.batch_size * (DECODED if phase in DECODING_PHASES else length) * layers)


def observe(case: Case, tokens: int) -> None:
    """Note the kernels of one call, and the power and energy of repeated calls with ``tokens`` tokens each."""
    assert case.workload is not None
    found = defaultdict[str, list[float]](list)
    for kernel, times in kernels.kernel_times(case.workload.call).items():
        found[short_name(kernel)] += times
    case.kernel_seconds = sum(map(sum, found.values()))
    slowest = sorted(found, key=lambda name: -sum(found[name]))
    case.facts["device_kernels"] = "; ".join(f"{name} {len(found[name])}" for name in slowest)
    if measured := power_and_energy(case.workload.call, case.calls):
        watts, joules = measured
        case.facts |= {"power": watts, "joules_per_token": joules / tokens}


def short_name(kernel: str) -> str:
    """Return the name of a kernel without return type, namespaces, template arguments and parameters."""
    name = re.split(r"[<(]", kernel.removeprefix("void ").replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return name.rpartition("::")[2].strip() or kernel


def sample(case: Case, setting: Setting) -> None:
    """Record the time of one round in seconds per call, or per token when decoding."""
    assert case.workload is not None
    case.samples.append(seconds(case.workload.call, case.calls, setting.device) / (case.calls * case.workload.tokens))
    if setting.device == "cuda":
        case.launches.append(launch_seconds(case.workload.call))


def judge(case: Case, machine: Machine) -> None:
    """Make a time a status if 90% of the rounds are faster than the roofline of the machine permits.

    On a CPU, a call has ended when it is timed; caches and other load affect the roofline more than a mistake would.
    """
    if case.workload is None:
        return
    counted = work(case.workload, case.operations)
    p90 = float(np.percentile(case.samples, 90))
    roof, least = machine.least_seconds(counted.get("flops", 0), counted["least_bytes"])
    if p90 < least:
        case.status, case.workload = "impossible", None
        case.detail = f"{p90 * 1e3:.3g} ms is less than the {least * 1e3:.3g} ms of the roofline ({roof})"


def compare(cases: Sequence[Case], pattern: Pattern, phase: str, length: int) -> list[Cost]:
    """Return the costs, relative to baseline, projections and the fastest third-party implementation."""
    measured = {case.subject.label: case for case in cases if case.workload is not None}
    softmax = [measured[label] for label in SOFTMAX_LABELS if label in measured]
    baseline, projections = fastest(softmax), measured.get(PROJECTIONS)
    costs = []
    for case in cases:
        facts: dict[str, Any] = {"status": case.status, "detail": case.detail, **case.facts}
        if case.workload is not None:
            p10, median, p90 = map(float, np.percentile(case.samples, (10, 50, 90)))
            facts |= {"seconds": median, "bytes": case.bytes, "p10": p10, "p90": p90}
            if baseline:
                facts["fastest_softmax"] = baseline.subject.label
                facts["relative_to_softmax"] = ratio(case.samples, baseline.samples)
            if projections and case is not projections:
                facts["seconds_without_projections"] = part(case, projections)
            facts["relative_to_softmax_without_projections"] = part_ratio(case, baseline, projections)
            facts |= work(case.workload, case.operations) | launching(case, case.workload.tokens)
            if rival := fastest_implementation(case, measured):
                facts["best_third_party"] = rival.subject.label
                facts["speedup_vs_third_party"] = ratio(rival.samples, case.samples)
                facts["speedup_vs_third_party_without_projections"] = part_ratio(rival, case, projections)
                facts["bytes_ratio"] = ratio([case.bytes or 0], [rival.bytes or 0])
            if padded := measured.get(padded_label(case.subject.label)):
                facts["speedup_vs_padded"] = ratio(padded.samples, case.samples)
                facts["bytes_vs_padded"] = ratio([case.bytes or 0], [padded.bytes or 0])
        costs.append(cost_of(case.subject, pattern, phase, length, facts))
    return costs


def cost_of(subject: Measurable, pattern: Pattern, phase: str, length: int, facts: Mapping[str, Any]) -> Cost:
    """Return a cost with further columns."""
    complexity = getattr(subject, "complexity", "")
    return Cost(subject.label, str(pattern), phase, length, kind=subject.kind, complexity=complexity, **facts)


def work(workload: Workload, operations: Operations | None) -> dict[str, Any]:
    """Return kernels, operations and memory traffic per call, or per token when decoding, if all are counted."""
    least = {"least_bytes": workload.least_bytes}
    if operations is None or operations.unknown or operations.foreign:
        return least | {"kernels": " ".join(sorted(operations.foreign)) if operations else ""}
    return least | {
        "flops": workload.passes * operations.flops // workload.tokens,
        "product_flops": workload.passes * operations.products // workload.tokens,
        "moved_bytes": operations.moved // workload.tokens,
    }


def fastest_implementation(case: Case, measured: Mapping[str, Case]) -> Case | None:
    """Return the third-party implementation of this attention with the smallest median."""
    label = case.subject.label
    others = [other for other in measured.values() if getattr(other.subject, "compared_with", "") == label]
    return fastest(others)


def fastest(cases: Iterable[Case]) -> Case | None:
    """Return the case with the smallest median, if there is any."""
    return min(cases, key=lambda case: float(np.median(case.samples)), default=None)


def launching(case: Case, tokens: int) -> dict[str, Any]:
    """Return the time of the host and the share of a call in which kernels run; empty on a CPU."""
    if not case.launches:
        return {}
    host, wall = map(float, np.median(case.launches, axis=0))
    facts: dict[str, Any] = {"host_seconds": host / tokens}
    if case.kernel_seconds:
        facts["busy"] = case.kernel_seconds / max(case.kernel_seconds, wall)
        facts |= {"detail": LAUNCH_BOUND} if facts["busy"] < BUSY_SHARE else {}
    return facts


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median over rounds of above / below."""
    return float(np.median(np.divide(above, below)))


def part(case: Case, projections: Case) -> float:
    """Return the median seconds of the attention part: those above the projections in the same round."""
    return float(np.median(np.subtract(case.samples, projections.samples if case.has_projections else 0.0)))


def part_ratio(above: Case | None, below: Case | None, projections: Case | None) -> float | None:
    """Return the ratio of the attention parts.

    None if a case is missing, or a part is not positive due to noise.
    """
    if above is None or below is None or projections is None:
        return None
    over, under = part(above, projections), part(below, projections)
    return over / under if min(over, under) > 0 else None


# --- the paper's protocol ---------------------------------------------------------------------------------------------

PAPER_PHASE = "forward"


def measure_as_paper(subject: Measurable, pattern: Pattern, lengths: Iterable[int], setting: Setting) -> Iterator[Cost]:
    """Measure one attention at increasing lengths."""
    lengths = sorted(lengths)
    inputs: dict[int, Inputs] = {}
    for length in lengths:
        with contextlib.suppress(RuntimeError, MemoryError):  # too long: made again below, where the error is a status
            inputs[length] = make_inputs(pattern, length, setting)
    peak = at_start = 0
    if setting.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        at_start = active_bytes("current")
    for length in lengths:
        try:
            measured = subject.for_length(length) if isinstance(subject, AttentionSubject) else subject
            with guarded(setting.device, setting.time_limit):
                sequences = inputs.get(length) or make_inputs(pattern, length, setting)
                facts = measure_once(measured, pattern, sequences, setting)
            facts["bytes"] = peak = max(peak, facts["bytes"] - at_start)
        except Exception as error:  # a failing attention must not abort the benchmark
            status, detail = status_of(error)
            facts = {"status": status, "detail": detail}
        release_memory(setting.device)
        yield cost_of(subject, pattern, PAPER_PHASE, length, facts)


def measure_once(subject: Measurable, pattern: Pattern, inputs: Inputs, setting: Setting) -> dict[str, Any]:
    """Return the columns of one attention at one length.

    On a CPU, the peak is measured in one more call, plus the weights, which are allocated before it.
    """
    torch.manual_seed(0)
    module = subject.build(pattern, setting, dropout=appendix_g()["dropout"]).to(setting.device).train()

    def call() -> Tensor:
        with setting.autocast():
            return module(**inputs)

    durations = []
    for _ in range(setting.repeats):
        begin = perf_counter()
        call()
        durations.append(perf_counter() - begin)
    is_cuda, weights = setting.device == "cuda", module.state_dict().values()
    peak = active_bytes("peak") if is_cuda else held_bytes(weights) + peak_bytes(call)
    p10, p25, p75, p90 = map(float, np.percentile(durations, (10, 25, 75, 90)))
    middle, layers = [x for x in durations if p25 <= x <= p75] or durations, count_layers(module)
    times = {"seconds": float(np.mean(middle)) / layers, "p10": p10 / layers, "p90": p90 / layers}
    return {**times, "bytes": peak // layers}


def active_bytes(kind: str) -> int:
    """Return the ``current`` number of active bytes on the GPU, or their ``peak``."""
    return torch.cuda.memory_stats()[f"active_bytes.all.{kind}"]
