"""The measurement plan: subjects, order and rejected combinations; costs of the attention of a user's run."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cab.efficiency.cost import CAUSAL_PHASES, Cost, write_costs
from cab.efficiency.gpu import clock_facts
from cab.efficiency.machine import Machine, under_roof
from cab.efficiency.network import NETWORK_PATTERN, NETWORK_PHASES, NetworkSubject
from cab.efficiency.packed import PACKED_PHASES, packed_and_padded
from cab.efficiency.protocols import PAPER_PHASE, measure_as_paper, measure_length, warm_up
from cab.efficiency.setting import Setting
from cab.efficiency.subjects import BASELINES, AttentionSubject, Measurable, ProjectionsSubject
from cab.efficiency.third_party import ThirdPartySubject
from cab.efficiency.workload import is_defined
from cab.errors import UserError, exits_as_errors, first_line
from cab.files.disk import replacing
from cab.files.text_table import counted, read_csv
from cab.patterns import Pattern
from cab.records.cost_sizes import BOARD_SIZES, EARLY, FALLBACK, LENGTH
from cab.records.record import Record
from cab.registry.program import code_of
from cab.registry.registries import ATTENTIONS
from cab.results.costs import GROWS, STATE, TOKENS, cost_name, cost_path, has_committed_cost, measure_state
from cab.spec import Spec
from cab.verification.side_effects import restored

log = logging.getLogger("cab")

Report = Callable[[str], None]
"""Receives progress messages."""

BOARD_SECONDS = 30
"""Maximum seconds for all calls of an attention at one length, in :func:`measure_for_board`."""

Refusal = Callable[[AttentionSubject, Pattern], str]
"""Returns the reason why an attention must not be timed in a pattern, or an empty string."""


@dataclass(frozen=True)
class Plan:
    """The measurements of one `cab efficiency` call.

    Raises:
        UserError: a length below 1, phases that the protocol does not support, nothing to measure, or CUDA graphs
            without CUDA.
    """

    attentions: Sequence[AttentionSubject]
    third_party: Sequence[ThirdPartySubject]
    patterns: Sequence[Pattern]
    phases: Sequence[str]
    lengths: Sequence[int]
    setting: Setting
    protocol: str = "default"

    def __post_init__(self) -> None:
        phases = " ".join(self.phases)
        if not self.lengths or min(self.lengths) < 1:
            raise UserError(f"lengths must be at least 1, got {list(self.lengths)}")
        if self.protocol == "paper" and set(self.phases) != {PAPER_PHASE}:
            raise UserError(f"protocol paper supports only phase {PAPER_PHASE}, got {phases}")
        if self.protocol == "lra" and (set(self.patterns) != {NETWORK_PATTERN} or {*self.phases} - {*NETWORK_PHASES}):
            raise UserError(
                f"protocol lra supports only pattern {NETWORK_PATTERN} and the phases {' and '.join(NETWORK_PHASES)}"
            )
        has_other_phase = not {*self.phases} <= {*PACKED_PHASES}
        if self.setting.packed and (self.protocol != "default" or self.third_party or has_other_phase):
            raise UserError(
                f"packed sequences support only protocol default and the phases {' and '.join(PACKED_PHASES)}, without "
                f"third-party implementations; got protocol {self.protocol} and {phases}"
            )
        if not any(is_defined(phase, pattern) for phase in self.phases for pattern in self.patterns):
            raise UserError(
                f"phase {phases} is not defined for {' '.join(self.patterns)}; it requires pattern CS or CC"
            )
        if graphs := [phase for phase in self.phases if phase.endswith("-graph") and self.setting.device != "cuda"]:
            raise UserError(f"phase {graphs[0]} requires --device cuda, got {self.setting.device}")
        if self.setting.compile and (self.protocol == "paper" or self.setting.packed or has_other_phase):
            raise UserError(
                f"--compile supports only the phases {' and '.join(PACKED_PHASES)}, without packed sequences or "
                f"protocol paper; got protocol {self.protocol} and {phases}"
            )
        if self.protocol == "paper" and any(subject.backend for subject in self.attentions):
            raise UserError("protocol paper does not support --kernels")


def measure(plan: Plan, *, refuse: Refusal = lambda *_: "", report: Report = lambda _: None) -> Iterator[Cost]:
    """Yield the costs of a plan in the order of measurement; the reason of a refusal is the detail of its status."""
    facts = constants(plan)
    for pattern in plan.patterns:
        attentions = [subject for subject in plan.attentions if pattern in subject.patterns]
        refused = {subject.label: reason for subject in attentions if (reason := _reason(refuse, subject, pattern))}
        for label, reason in refused.items():
            report(f"{label} {pattern} skipped: {reason}")
        allowed = [subject for subject in attentions if subject.label not in refused]
        others = [subject for subject in plan.third_party if pattern in subject.patterns]
        for phase in plan.phases:
            if not is_defined(phase, pattern):
                report(f"{pattern} skipped in phase {phase}: it requires CS or CC")
                continue
            for label, reason in refused.items():
                for length in plan.lengths:
                    row = Cost(label, str(pattern), phase, length, status="unverified", detail=reason)
                    yield dataclasses.replace(row, **facts)
            for cost in _measure(plan, [*allowed, *others], pattern, phase, report):
                yield dataclasses.replace(cost, **facts)


def _reason(refuse: Refusal, subject: AttentionSubject, pattern: Pattern) -> str:
    """Return the reason of ``refuse``, or its error, which concerns one attention only."""
    try:
        with exits_as_errors():
            return refuse(subject, pattern)
    except Exception as error:
        return f"verification ended with {type(error).__name__}: {first_line(error)}"


def _measure(
    plan: Plan, subjects: Sequence[Measurable], pattern: Pattern, phase: str, report: Report
) -> Iterator[Cost]:
    setting = plan.setting
    if plan.protocol == "paper":
        for subject in subjects:
            report(f"{pattern} {phase}, protocol paper: {subject.label}")
            yield from measure_as_paper(subject, pattern, plan.lengths, setting)
        return
    attentions = [subject for subject in subjects if isinstance(subject, AttentionSubject)]
    if plan.protocol == "lra":
        subjects = [NetworkSubject.of(subject, max(plan.lengths)) for subject in attentions]
    elif setting.packed:
        subjects = [kind for subject in attentions for kind in packed_and_padded(subject)]
    elif phase in CAUSAL_PHASES:
        subjects = attentions
    else:
        subjects = [ProjectionsSubject(), *subjects]
    modules = counted(len(subjects), "module")
    if setting.device == "cuda":
        report(f"{pattern} {phase}: warming up {modules} at {counted(len(plan.lengths), 'length')}")
        warm_up(subjects, pattern, phase, plan.lengths, setting)
    for length in plan.lengths:
        report(f"{pattern} {phase}, length {length}: {modules}, {counted(setting.repeats, 'round')}")
        machine = None if plan.protocol == "lra" else Machine(setting)
        costs = measure_length(subjects, pattern, phase, length, setting, machine=machine)
        report_noise(costs, report)
        if machine is None:
            yield from costs
            continue
        rates = machine.rates()
        if not rates:
            report("  no roofline: the memory does not suffice to measure the rates of this machine")
        clocks = clock_facts() if setting.device == "cuda" else {}
        if clocks.get("throttled"):
            report(f"  GPU throttled ({clocks['throttled']}): {clocks['clock']} of {clocks['clock_most']} MHz")
        yield from (dataclasses.replace(cost, **under_roof(cost, rates), **clocks) for cost in costs)


def measure_for_board(subject: AttentionSubject, pattern: Pattern) -> list[Cost]:
    """Measure an attention as in ``results/efficiency/costs.csv``: on the CPU, one thread, one sequence per batch.

    These are a forward pass at 8,192 tokens compared with vanilla and, in a causal pattern, decoding after 256 and
    8,192 tokens; 2,048 tokens if this takes longer than :data:`BOARD_SECONDS`, or too much memory.
    """
    vanilla = AttentionSubject.parse(BASELINES[0])
    phases: dict[str, list[AttentionSubject]] = {"forward": [vanilla, subject]}
    phases |= {"decode": [subject]} if pattern.is_causal else {}
    costs = []
    with restored():
        torch.set_num_threads(1)
        for phase, subjects in phases.items():
            sizes = BOARD_SIZES[phase]
            setting = Setting(1, sizes["embed_dim"], sizes["num_heads"], repeats=3, time_limit=BOARD_SECONDS)
            earlier = [EARLY] if phase == "decode" else []
            for length in (LENGTH, FALLBACK):
                measured = list(measure(Plan(subjects, [], [pattern], [phase], [*earlier, length], setting)))
                if not any(cost.status in ("timeout", "oom") for cost in measured if cost.attention == subject.label):
                    break
            costs += measured
    return costs


def report_noise(costs: Sequence[Cost], report: Report) -> None:
    """Report baseline times that vary too much for small ratios to be meaningful."""
    for cost in costs:
        if cost.attention == BASELINES[0] and cost.p10 and cost.p90 and cost.p90 > 1.5 * cost.p10:
            report(
                f"  noisy: {cost.attention} takes {cost.p10 * 1e3:.3g} to {cost.p90 * 1e3:.3g} ms (10th to 90th "
                "percentile); use a quieter machine, fewer threads or more --repeats"
            )


def constants(plan: Plan) -> dict[str, Any]:
    """Return the columns with the same value in every row."""
    from cab.runner.provenance import hardware

    setting = plan.setting
    machine = hardware(torch.device(setting.device))
    named = ("repeats", "packed", "batch_size", "embed_dim", "num_heads", "dtype", "device")
    return {
        "protocol": plan.protocol,
        **{name: getattr(setting, name) for name in named},
        "compiled": "yes" if setting.compile else "",
        "hardware": machine.get("gpu") or machine["cpu"],
        "threads": machine["threads"],
        "torch": torch.__version__,
    }


# --- the attention of a run -------------------------------------------------------------------------------------------


def measure_state_of(record: Record) -> None:
    """Measure the decode state of the attention of a run in milliseconds, and store it; see :func:`can_measure`."""
    if record.cell["pattern"] == "CS" and can_measure(record) and not _cost_path(record).exists():
        attention = Spec.of(record.config["attention"])
        state = measure_state(ATTENTIONS.get(attention.name), attention.options)
        size, growth = round(4 * state.numbers), GROWS if state.grows else ""
        _store(record, [Cost(cost_name(record.cell["attention"]), "CS", STATE, TOKENS, bytes=size, detail=growth)])


def measure_cost_of(record: Record) -> None:
    """Measure the cost of the attention of a run, once per code and pattern, and store it; see :func:`can_measure`."""
    path = _cost_path(record)
    earlier = read_csv(path) if path.exists() else []
    if not can_measure(record) or any(row["phase"] == "forward" for row in earlier):
        return
    name, pattern = cost_name(record.cell["attention"]), Pattern.parse(str(record.cell["pattern"]))
    log.info("measuring the cost of %s in %s at %d tokens; --no-cost skips this", name, pattern, LENGTH)
    attention = Spec.of(record.config["attention"])
    subject = AttentionSubject.parse(attention.name)
    costs = measure_for_board(dataclasses.replace(subject, label=name, options=attention.options), pattern)
    for cost in (cost for cost in costs if cost.kind == "attention" and cost.status != "ok"):
        reason = f"{cost.status} {cost.detail}".rstrip()
        log.warning("%s %s has no cost in phase %s: %s", cost.attention, pattern, cost.phase, reason)
    if any(cost.attention == "vanilla" and cost.status == "ok" for cost in costs):  # else repeat it
        states = [row for row in earlier if row["phase"] == STATE]
        kept = [Cost(name, "CS", STATE, TOKENS, bytes=int(row["bytes"]), detail=row["detail"]) for row in states]
        _store(record, [*kept, *costs])


def can_measure(record: Record) -> bool:
    """Return whether the attention of a run lacks a committed cost and its code is that of the run."""
    if has_committed_cost(record.cell["attention"], record.attention_code):
        return False
    name = record.config["attention"]["name"]
    is_same = code_of(ATTENTIONS.get(name).cls) == record.attention_code
    if not is_same:
        place = f"{cost_name(record.cell['attention'])} in {record.cell['pattern']}"
        log.warning("the cost of %s is not measured: its code has changed since the run", place)
    return is_same


def _cost_path(record: Record) -> Path:
    names = record.cell["attention"], record.cell["pattern"], record.attention_code, record.earlier_code
    return cost_path(Path(record.config["results_dir"]), *names)


def _store(record: Record, costs: Iterable[Cost]) -> None:
    path = _cost_path(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        list(write_costs(costs, file))
