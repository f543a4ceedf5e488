"""What to measure, in which order, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cab.efficiency.cost import DECODING, Cost
from cab.efficiency.failures import within_free_memory
from cab.efficiency.gpu_state import clock_facts
from cab.efficiency.network import PATTERN as NETWORK_PATTERN
from cab.efficiency.network import PHASES as NETWORK_PHASES
from cab.efficiency.network import NetworkSubject
from cab.efficiency.own import measure_length
from cab.efficiency.paper import PHASE as PAPER_PHASE
from cab.efficiency.paper import measure_as_paper
from cab.efficiency.peers import PeerSubject
from cab.efficiency.roof import Machine, under_roof
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import BASELINES, AttentionSubject, ProjectionsSubject, Subject
from cab.efficiency.workload import PHASES, is_defined
from cab.errors import UserError, unknown_name
from cab.patterns import Pattern

NOISY = 1.5
"""90th percentile of the baseline's times relative to the 10th, above which a line says so."""

Refusal = Callable[[AttentionSubject, Pattern], str]
"""Why an attention must not be timed in a pattern; empty when it may."""


@dataclass(frozen=True)
class Plan:
    """Everything that one `cab efficiency` measures.

    Raises:
        ValueError: an unknown phase or protocol, a length below 1, nothing to measure, or CUDA graphs elsewhere.
    """

    attentions: Sequence[AttentionSubject]
    peers: Sequence[PeerSubject]
    patterns: Sequence[Pattern]
    phases: Sequence[str]
    lengths: Sequence[int]
    setting: Setting
    protocol: str = "default"

    def __post_init__(self) -> None:
        for phase in self.phases:
            if phase not in PHASES:
                raise unknown_name("phase", phase, PHASES)
        if self.protocol not in ("default", "paper", "lra"):
            raise UserError(f"protocol must be own, paper or lra, got '{self.protocol}'")
        if not self.lengths or min(self.lengths) < 1:
            raise UserError(f"lengths must be at least 1, got {list(self.lengths)}")
        if self.protocol == "paper" and set(self.phases) != {PAPER_PHASE}:
            raise UserError(f"the paper's protocol measures phase {PAPER_PHASE} only, got {' '.join(self.phases)}")
        if self.protocol == "lra" and (set(self.patterns) != {NETWORK_PATTERN} or {*self.phases} - {*NETWORK_PHASES}):
            raise UserError(
                f"protocol lra measures {NETWORK_PATTERN} in the phases {' and '.join(NETWORK_PHASES)} only"
            )
        if not any(is_defined(phase, pattern) for phase in self.phases for pattern in self.patterns):
            raise UserError(
                f"phase {' '.join(self.phases)} is not defined for {' '.join(map(str, self.patterns))}: "
                "only CS and CC decode"
            )
        if "decode-graph" in self.phases and self.setting.device != "cuda":
            raise UserError(f"phase decode-graph repeats a CUDA graph, and the device is {self.setting.device}")


def silent(line: str) -> None:
    """Tells nobody."""


def never(subject: AttentionSubject, pattern: Pattern) -> str:  # noqa: ARG001
    return ""


def measure(plan: Plan, *, refuse: Refusal = never, report: Callable[[str], None] = silent) -> Iterator[Cost]:
    """Costs in the order in which they are found.

    Args:
        refuse: asked once for each attention and pattern; its reason becomes the detail of status ``unverified``.
        report: told what is being done, a line at a time.
    """
    facts = constants(plan)
    limit = within_free_memory if plan.setting.device == "cpu" else contextlib.nullcontext
    for pattern in plan.patterns:
        attentions = [subject for subject in plan.attentions if pattern in subject.patterns]
        refused = {subject.label: reason for subject in attentions if (reason := refuse(subject, pattern))}
        for label, reason in refused.items():
            report(f"{label} {pattern} is not timed: {reason}")
        allowed = [subject for subject in attentions if subject.label not in refused]
        peers = [peer for peer in plan.peers if pattern in peer.patterns]
        for phase in plan.phases:
            if not is_defined(phase, pattern):
                report(f"{pattern} has no phase {phase}: only CS and CC decode")
                continue
            for label, reason in refused.items():
                for length in plan.lengths:
                    row = Cost(label, str(pattern), phase, length, status="unverified", detail=reason)
                    yield dataclasses.replace(row, **facts)
            with limit():
                for cost in _measure(plan, [*allowed, *peers], pattern, phase, report):
                    yield dataclasses.replace(cost, **facts)


def _measure(
    plan: Plan, subjects: Sequence[Subject], pattern: Pattern, phase: str, report: Callable[[str], None]
) -> Iterator[Cost]:
    if plan.protocol == "paper":
        for subject in subjects:
            report(f"{pattern} {phase}, paper's protocol: {subject.label}")
            yield from measure_as_paper(subject, pattern, plan.lengths, plan.setting)
        return
    if plan.protocol == "lra":
        yield from _measure_networks(plan, pattern, phase, subjects, report)
        return
    if phase in DECODING:
        subjects = [subject for subject in subjects if subject.kind == "attention"]
    else:
        subjects = [ProjectionsSubject(), *subjects]
    for length in plan.lengths:
        report(f"{pattern} {phase}, length {length}: {len(subjects)} modules, {plan.setting.repeats} rounds")
        machine = Machine(plan.setting)
        costs = measure_length(subjects, pattern, phase, length, plan.setting, machine=machine)
        report_noise(costs, report)
        rates = machine.rates()
        clocks = clock_facts() if plan.setting.device == "cuda" else {}
        if clocks.get("throttled"):
            report(f"  the GPU is slowed down: {clocks['throttled']}; {clocks['clock']} of {clocks['clock_most']} MHz")
        yield from (dataclasses.replace(cost, **under_roof(cost, rates), **clocks) for cost in costs)


def _measure_networks(
    plan: Plan, pattern: Pattern, phase: str, subjects: Sequence[Subject], report: Callable[[str], None]
) -> Iterator[Cost]:
    networks = [NetworkSubject(each, max(plan.lengths)) for each in subjects if isinstance(each, AttentionSubject)]
    for length in plan.lengths:
        report(f"{pattern} {phase}, length {length}: {len(networks)} networks, {plan.setting.repeats} rounds")
        costs = measure_length(networks, pattern, phase, length, plan.setting)
        report_noise(costs, report)
        yield from costs


def report_noise(costs: Sequence[Cost], report: Callable[[str], None]) -> None:
    """Say so when the baseline's own times differ so much that small ratios mean nothing."""
    for cost in costs:
        if cost.attention == BASELINES[0] and cost.p10 and cost.p90 and cost.p90 > NOISY * cost.p10:
            report(
                f"  noisy: {cost.attention} took {cost.p10 * 1e3:.3g} to {cost.p90 * 1e3:.3g} ms (10th to 90th "
                "percentile); use a quieter machine, fewer threads or more --repeats"
            )


def constants(plan: Plan) -> dict[str, Any]:
    """What is the same in every row."""
    from cab.runner.provenance import hardware

    machine = hardware(torch.device(plan.setting.device))
    return {
        "protocol": plan.protocol,
        "repeats": plan.setting.repeats,
        "batch_size": plan.setting.batch_size,
        "embed_dim": plan.setting.embed_dim,
        "num_heads": plan.setting.num_heads,
        "dtype": plan.setting.dtype,
        "device": plan.setting.device,
        "hardware": machine.get("gpu") or machine["cpu"],
        "threads": machine["threads"],
        "torch": torch.__version__,
    }
