"""The paper's protocol, as released; on a GPU it mostly measures the launch of kernels.

Wall clock without synchronization and warm-up; mean of the calls between the 25th and 75th percentile; training mode
with dropout and recorded graph, but no backward pass; a new module per length; peak memory over all lengths so far,
including weights. Attentions are measured one after another.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cab.efficiency.cost import Cost
from cab.efficiency.failures import guarded, release_memory, status_of
from cab.efficiency.setting import Setting, appendix_g
from cab.efficiency.subjects import AttentionSubject, Subject
from cab.efficiency.timing import check_clock
from cab.efficiency.workload import make_inputs
from cab.patterns import Pattern
from cab.verification.growth import peak_bytes

PHASE = "forward"


def measure_as_paper(subject: Subject, pattern: Pattern, lengths: Iterable[int], setting: Setting) -> Iterator[Cost]:
    """Measure one attention at increasing lengths."""
    lengths = sorted(lengths)
    inputs: dict[int, dict[str, Tensor]] = {}
    for length in lengths:
        with contextlib.suppress(RuntimeError, MemoryError):  # too long: made again below, where the error is a status
            inputs[length] = make_inputs(pattern, length, setting)
    peak = Peak(setting)
    for length in lengths:
        complexity = getattr(subject, "complexity", "")
        cost = Cost(subject.label, str(pattern), PHASE, length, kind=subject.kind, complexity=complexity)
        try:
            measured = subject.for_length(length) if isinstance(subject, AttentionSubject) else subject
            with guarded(setting.device, setting.time_limit):
                given = inputs.get(length) or make_inputs(pattern, length, setting)
                facts = measure_once(measured, pattern, given, setting, peak)
        except Exception as error:  # a failing attention must not abort the benchmark
            status, detail = status_of(error)
            facts = {"status": status, "detail": detail}
        release_memory(setting.device)
        yield dataclasses.replace(cost, **facts)


def measure_once(
    subject: Subject, pattern: Pattern, inputs: dict[str, Tensor], setting: Setting, peak: Peak
) -> dict[str, Any]:
    """Return the columns of one attention at one length."""
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
    check_clock()
    weights = sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    p10, p25, p75, p90 = (float(np.percentile(durations, at)) for at in (10, 25, 75, 90))
    middle = [duration for duration in durations if p25 <= duration <= p75] or durations
    return {"seconds": float(np.mean(middle)), "p10": p10, "p90": p90, "bytes": peak.read(call, weights)}


class Peak:
    """Peak of active bytes since construction, above those active at construction."""

    def __init__(self, setting: Setting) -> None:
        self.device = setting.device
        self.largest = 0
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_stats()["active_bytes.all.current"]

    def read(self, call: Callable[[], object], weights: int) -> int:
        """Return the peak; on a CPU it is measured in one more call, plus the weights, which are allocated later."""
        if self.device == "cuda":
            return torch.cuda.memory_stats()["active_bytes.all.peak"] - self.before
        self.largest = max(self.largest, weights + peak_bytes(call))
        return self.largest
