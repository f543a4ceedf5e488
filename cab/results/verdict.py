"""The verdict on an attention in sentences, from its own runs and the reference results, and its cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from cab.patterns import pattern_rank
from cab.records.record import REFERENCE_DIRS, Record
from cab.records.results import with_program_names
from cab.records.verified import verdict, verified_codes
from cab.results.cells import ANCHORS, CellResults, Key, collect, records_of
from cab.results.costs import State, cost_name, cost_of, is_committed
from cab.results.gain import CellGain, cell_gains
from cab.results.state import suite_states
from cab.results.statistics import ONE_SEED_LEGEND, ONE_SEED_MARK, Estimate, Verdict

DIVERGED_MARK, SLOTS_MARK = "!", "#"
BOUND_LEGEND = (
    "at most: one-sided 95% bound of K over seeds, adjusted over the attentions of the cell; worse: it is below 98"
)


def gain_text(gain: CellGain) -> str:
    """Format K of a cell with its marks: still learning, a single seed, diverged runs, fewer slots than facts."""
    bound = "≥ " if gain.is_lower_bound else ""
    marks = {ONE_SEED_MARK: len(gain.points) == 1, DIVERGED_MARK: gain.diverged, SLOTS_MARK: gain.slots}
    signs = "".join(mark for mark, is_shown in marks.items() if is_shown)
    return f"{bound}{round(gain.estimate.value, 1) + 0.0:.1f}{signs}"


def verdict_text(gain: CellGain) -> str:
    """Format the verdict with K and its bound; a result at the ceiling with its solved seeds."""
    match gain.verdict:
        case Verdict.SOLVED:
            return f"solved in {gain.solved} of {len(gain.points)} seeds"
        case Verdict.ONE_SEED:
            return f"K {gain_text(gain)}, not tested"
        case Verdict.UNDECIDED:
            words = "undecided"
        case word:
            words = f"{word} {'to' if word is Verdict.EQUIVALENT else 'than'} softmax attention"
    return f"{words}, K {gain_text(gain)}, at most {gain.bound:.1f}"


def steps_text(steps: Estimate) -> str:
    """Format a number of steps with its interval."""
    low, high = steps.interval()
    return f"{steps.value:,.0f}" + ("" if math.isnan(low) else f" [{max(low, 0):,.0f}, {high:,.0f}]")


def is_named(record: Record, name: str) -> bool:
    """Return whether a name is that of a record's attention: in tables, or in commands, such as FILE.py:Class."""
    return name in (record.cell["attention"], record.config["attention"]["name"])


def judge_attention(
    name: str, records: Iterable[Record], reference: tuple[Path, ...] = REFERENCE_DIRS
) -> list[list[str]]:
    """Compare an attention with softmax attention, and return the lines of the verdict per pattern.

    Args:
        records: records that contain its runs; other attentions are ignored.
        reference: folders of the results whose family of tests it joins.
    """
    records, known = list(records), list(records_of(reference))
    named = with_program_names([*known, *records])  # other code under a reference's name has another name
    others = {each.cell.key: each for each in collect(named[: len(known)])}
    pairs = zip(records, named[len(known) :], strict=True)
    runs = [run for record, run in pairs if is_named(record, name) or is_named(run, name)]
    last = {(record.cell["attention"], record.cell["pattern"]): record for record in runs}
    results = collect(runs)
    return [
        _verdict(record, [each for each in results if each.cell.pattern == pattern], others)
        for (name, pattern), record in sorted(last.items(), key=lambda item: pattern_rank(str(item[0][1])))
        if any(name in (*each.runs, *each.left_out) for each in results if each.cell.pattern == pattern)
    ]


def _verdict(record: Record, results: Sequence[CellResults], others: Mapping[Key, CellResults]) -> list[str]:
    name = str(record.cell["attention"])
    core = [result.cell for result in results if result.cell.core]
    run = [result for result in results if name in result.runs and result.anchors]
    run.sort(key=lambda result: not result.cell.core)
    missing = [str(cell) for cell in core if cell not in {result.cell for result in run}]
    lines = [f"{name}, pattern {record.cell['pattern']}: {len(core) - len(missing)} of {len(core)} core cells"]
    if missing:
        command = f"cab run suite=core attention={_target(record)} pattern={record.cell['pattern']}"
        lines[0] += f"; without {', '.join(missing)} (`{command}`)"
    gains = [cell_gains(result, others[result.cell.key])[name] for result in run]
    for gain, result in zip(gains, run, strict=True):
        head, *details = _summary(gain, result)
        lines += [head, *(f"  {line}" for line in details)]
    unscored = {result.cell: result.left_out.get(name) for result in results}
    lines += [f"not scored: {cell}: {reason}" for cell, reason in unscored.items() if reason]
    without = [result.cell for result in results if name in result.runs and not result.anchors]
    lines += [f"not scored: {cell}: it has no anchors" for cell in without]
    is_verified = verdict(record, verified_codes()) == "yes"
    command = f"run `cab verify {_target(record)} --pattern {record.cell['pattern']}`"
    lines.append("verified: the code passed `cab verify`" if is_verified else f"not verified: {command}")
    lines += [BOUND_LEGEND] if any(not math.isnan(gain.bound) for gain in gains) else []
    lines += [ONE_SEED_LEGEND] if any(len(gain.points) == 1 for gain in gains) else []
    return [lines[0], *(f"  {line}" for line in lines[1:])]


def _summary(own: CellGain, results: CellResults) -> list[str]:
    """Return a line with the verdict and one with the metric, and remarks on the training."""
    cell, name = own.cell, ", ".join(filter(None, (own.cell.ability, str(own.cell))))
    head = f"{name}: {verdict_text(own)}{'' if cell.core else ' (not a core cell)'}"
    deviation = statistics.stdev(own.values) if len(own.values) > 1 else 0.0
    spread = f" ± {deviation:.2g}" if deviation else ""
    others = [f"{anchor} {statistics.fmean(results.values(anchor)):.4g}" for anchor in ANCHORS]
    trivial = results.baselines.get(cell.trivial_baseline)
    others += [f"{cell.trivial_baseline} {trivial:.4g}"] if trivial is not None else []
    line = f"{cell.metric} {own.mean:.4g}{spread} ({', '.join(others)})"
    line += f", solved in {own.solved} of {len(own.points)} seeds"
    line += f", after {steps_text(own.steps)} steps" if own.steps else ""
    lines = [head, line]
    if own.unfinished:
        lines.append(f"unfinished: {own.unfinished} of {len(own.points)} seeds still learned when the budget ended")
    if own.diverged:
        lines.append(f"diverged: {own.diverged} seeds got worse after their best validation, or have no score")
    if own.slots:
        lines.append(f"few slots: the options of the suite leave {own.slots}")
    return lines


def state_text(state: State) -> str:
    """Return a sentence about the decode state in the network of ``recall``."""
    size = f"{state.numbers:,.0f} numbers" + (" per token" if state.grows else ", constant")
    return f"decode state: {size}, in the network of recall"


def cost_texts(record: Record, folders: Collection[Path]) -> list[str]:
    """Return sentences about the state and the cost of the attention of a record, from committed or stored costs."""
    cost = cost_of(record, folders)
    state = (is_committed(record) and suite_states().get(cost_name(record))) or cost.suite_state
    lines = [state_text(state)] if state and record.cell["pattern"] == "CS" else []
    parts = []
    if cost.time is None:
        target = f"{_target(record)} --pattern {record.cell['pattern']}"
        parts.append(f"not measured against softmax (`cab efficiency {target}`)")
    else:
        memory = f" and {cost.memory:.2f} times its memory" if cost.memory is not None else ""
        parts.append(f"{cost.time:.2f} times the time of softmax attention{memory} at {cost.length:,} tokens")
    if cost.state_bytes is not None:
        parts.append(f"decoding takes {cost.decode_ms:.2f} ms per token, with a state of {cost.state_bytes:,} bytes")
    if cost.complexity:
        parts.append(f"declared complexity {cost.complexity}")
    return [*lines, f"cost: {'; '.join(parts)}"]


def _target(record: Record) -> str:
    """Return the name by which commands find the attention, such as FILE.py:Class."""
    return str(record.config["attention"]["name"])
