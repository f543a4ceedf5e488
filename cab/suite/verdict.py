"""The verdict on an attention in sentences, from its own runs and the reference results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from cab.patterns import pattern_rank
from cab.records.record import REFERENCE_DIRS, Record
from cab.records.results import with_program_names
from cab.records.verified import verdict, verified_codes
from cab.scoring.costs import LENGTH, cost_of
from cab.scoring.statistics import ONE_SEED_LEGEND, ONE_SEED_MARK, Estimate, Verdict
from cab.suite.cells import ANCHORS, SOFTMAX, CellResults, Key, collect, records_of
from cab.suite.comparison import (
    MOST_SEEDS,
    NEAREST,
    Gains,
    against_all,
    against_nearest,
    against_softmax,
    repetition,
    rivals,
    seeds_to_decide,
)
from cab.suite.gain import CellGain, cell_gains

RELATIONS = {
    Verdict.WORSE: "worse than",
    Verdict.EQUIVALENT: "equivalent to",
    Verdict.BETTER: "better than",
    Verdict.UNDECIDED: "undecided against",
    Verdict.ONE_SEED: "not tested against",
}
DIVERGED_MARK, SLOTS_MARK = "!", "#"


def gain_text(gain: CellGain) -> str:
    """Format K of a cell with its marks: still learning, a single seed, diverged runs, fewer slots than facts."""
    bound = "≥ " if gain.is_lower_bound else ""
    marks = {ONE_SEED_MARK: len(gain.points) == 1, DIVERGED_MARK: gain.diverged, SLOTS_MARK: gain.slots}
    signs = "".join(mark for mark, is_shown in marks.items() if is_shown)
    return f"{bound}{round(gain.estimate.value, 1) + 0.0:.1f}{signs}"


def steps_text(steps: Estimate) -> str:
    """Format a number of steps with its interval."""
    low, high = steps.interval()
    return f"{steps.value:,.0f}" + ("" if math.isnan(low) else f" [{max(low, 0):,.0f}, {high:,.0f}]")


def judge_attention(
    name: str, records: Iterable[Record], folders: Collection[Path] = (), reference: tuple[Path, ...] = REFERENCE_DIRS
) -> list[list[str]]:
    """Compare an attention with the reference results, and return the lines of the verdict per pattern.

    Args:
        records: records that contain its runs; other attentions are ignored.
        folders: folders with the costs that were measured after its runs.
        reference: folders of the results it is compared with.
    """
    records, known = list(records), list(records_of(reference))
    named = with_program_names([*known, *records])  # other code under a reference's name has another name
    others = {each.cell.key: each for each in collect(named[: len(known)])}
    pairs = zip(records, named[len(known) :], strict=True)
    runs = [run for record, run in pairs if name in (record.cell["attention"], run.cell["attention"])]
    last = {(record.cell["attention"], record.cell["pattern"]): record for record in runs}
    results = collect(runs)
    return [
        _verdict(record, [each for each in results if each.cell.pattern == pattern], others, folders)
        for (name, pattern), record in sorted(last.items(), key=lambda item: pattern_rank(str(item[0][1])))
        if any(name in (*each.runs, *each.left_out) for each in results if each.cell.pattern == pattern)
    ]


def _verdict(
    record: Record, results: Sequence[CellResults], others: Mapping[Key, CellResults], folders: Collection[Path]
) -> list[str]:
    name = str(record.cell["attention"])
    core = [result.cell for result in results if result.cell.core]
    run = [result for result in results if name in result.runs and result.anchors]
    run.sort(key=lambda result: not result.cell.core)
    missing = [str(cell) for cell in core if cell not in {result.cell for result in run}]
    lines = [f"{name}, pattern {record.cell['pattern']}: {len(core) - len(missing)} of {len(core)} core cells"]
    if missing:
        command = f"cab run suite=core attention={_target(record)} pattern={record.cell['pattern']}"
        lines[0] += f"; without {', '.join(missing)} (`{command}`)"
    for result in run:
        own, known = cell_gains(result)[name], others[result.cell.key]
        reference = cell_gains(known)
        same = reference.pop(name, None)
        is_new = same and known.runs[name] != result.runs[name]
        again = [f"trained again: {repetition(own, same)}"] if same and is_new else []
        head, *details = [*_summary(own, result, reference), *again, *_relations(own, reference)]
        lines += [head, *(f"  {line}" for line in details)]
    unscored = {result.cell: result.left_out.get(name) for result in results}
    lines += [f"not scored: {cell}: {reason}" for cell, reason in unscored.items() if reason]
    without = [result.cell for result in results if name in result.runs and not result.anchors]
    lines += [f"not scored: {cell}: it has no anchors" for cell in without]
    lines.append(_cost(record, [one for result in run for one in result.runs[name].values()], folders))
    is_verified = verdict(record, verified_codes()) == "yes"
    command = f"run `cab verify {_target(record)} --pattern {record.cell['pattern']}`"
    lines.append("verified: the code passed `cab verify`" if is_verified else f"not verified: {command}")
    if any(len(result.runs[name]) == 1 for result in run):
        lines.append(ONE_SEED_LEGEND)
    return [lines[0], *(f"  {line}" for line in lines[1:])]


def _summary(own: CellGain, results: CellResults, reference: Gains) -> list[str]:
    """Return a line with K and one with the metric, and remarks on the training."""
    cell, name = own.cell, ", ".join(filter(None, (own.cell.ability, str(own.cell))))
    kind = "" if cell.core else " (not a core cell)"
    low, high = own.interval
    interval = "" if math.isnan(low) else f", 95% [{low:.1f}, {high:.1f}] over seeds"
    head = f"{name}: K {gain_text(own)}{interval}{kind}"
    deviation = f" ± {statistics.stdev(own.values):.2g}" if len(own.values) > 1 else ""
    others = [f"{anchor} {reference[anchor].mean:.4g}" for anchor in ANCHORS]
    trivial = results.baselines.get(cell.trivial_baseline)
    others += [f"{cell.trivial_baseline} {trivial:.4g}"] if trivial is not None else []
    line = f"{cell.metric} {own.mean:.4g}{deviation} ({', '.join(others)})"
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


def _relations(own: CellGain, reference: Gains) -> list[str]:
    """Return one line per family of comparisons, and the number of seeds that would decide what is open."""
    name, gains = own.attention, {**reference, own.attention: own}
    if len(own.points) == 1:
        return ["not compared: a single seed"]
    softmax, nearest = against_softmax(reference, {name: own})[1][name], against_nearest(name, gains)
    lines = [
        f"against softmax attention: {softmax}",
        f"against the {NEAREST} nearest: {_listed(nearest, gains)}",
        f"against all (5% of these differences may be false): {_listed(against_all(name, gains), gains)}",
    ]
    others = [gains[other] for other in rivals(name, gains) if other not in ANCHORS]
    family = 1 + sum(gain.estimate.is_known for gain in others)
    tests = [(SOFTMAX, softmax, family), *((other, word, len(nearest)) for other, word in nearest.items())]
    more = [
        f"{other} {seeds_to_decide(own, gains[other], family) or f'more than {MOST_SEEDS}'}"
        for other, word, family in tests
        if word is Verdict.UNDECIDED
    ]
    if more:
        lines.append(f"seeds that would decide it, if mean and deviation stay: {', '.join(more)}")
    return lines


def _listed(verdicts: Mapping[str, Verdict], gains: Gains) -> str:
    """Return the rivals by verdict, each with its K, and the number of those with a single seed."""
    rivals: dict[Verdict, list[str]] = {}
    for rival, word in sorted(verdicts.items(), key=lambda item: -gains[item[0]].retained):
        rivals.setdefault(word, []).append(f"{rival} {gain_text(gains[rival])}")
    single = len(rivals.pop(Verdict.ONE_SEED, ()))
    parts = [f"{text} {', '.join(rivals[word])}" for word, text in RELATIONS.items() if word in rivals]
    return "; ".join([*parts, *([f"not tested: {single} with a single seed"] if single else [])])


def _cost(record: Record, runs: Sequence[Record], folders: Collection[Path]) -> str:
    seconds = [run.cost.cpu_seconds for run in runs if run.cost.cpu_seconds is not None]
    parts = [f"{statistics.fmean(seconds):.0f} CPU seconds per training run"] if seconds else []
    cost = cost_of(record, folders)
    if cost.time is None:
        parts.append(
            f"not measured against softmax (`cab efficiency {_target(record)} --pattern {record.cell['pattern']}`)"
        )
    else:
        memory = f" and {cost.memory:.2f} times its memory" if cost.memory is not None else ""
        parts.append(f"{cost.time:.2f} times the time of softmax attention{memory} at {LENGTH:,} tokens")
    if cost.state_bytes is not None:
        parts.append(f"decoding takes {cost.decode_ms:.2f} ms per token, with a state of {cost.state_bytes:,} bytes")
    if cost.complexity:
        parts.append(f"declared complexity {cost.complexity}")
    return f"cost: {'; '.join(parts)}"


def _target(record: Record) -> str:
    """Return the name by which commands find the attention, such as FILE.py:Class."""
    return str(record.config["attention"]["name"])
