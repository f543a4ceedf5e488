"""Tables of K, one row per attention and pattern, and the verdict on an attention in sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cab.patterns import pattern_rank
from cab.records.record import REFERENCE_DIRS, Record
from cab.records.results import mark_unverified
from cab.records.verified import verdict, verified_codes
from cab.scoring.costs import LENGTH, MeasuredCost, measured_costs
from cab.scoring.statistics import MARGIN, ONE_SEED_LEGEND, ONE_SEED_MARK, Estimate, Verdict, rank_range
from cab.suite.cells import ANCHORS, SOFTMAX, CellResults, SuiteCell, collect, records_of
from cab.suite.check import invalid_cells
from cab.suite.gain import CellGain, PatternGain, SuiteGains, compare, suite_gains
from cab.suite.tuning import FACTORS, TUNED

HEADER = (
    *("attention", "K", "95% interval", "rank", "worst cell", "K there", "solved", "seeds"),
    *("error / vanilla", "steps to solve", "usable rates"),
)
ALIGN = "lrrrlrrrrrr"


@dataclass(frozen=True)
class GainRow:
    """One row of the table.

    Attributes:
        gain: K of the attention in the pattern.
        rank: best and worst rank among the attentions with K that are not tuned; None without K.
    """

    gain: PatternGain
    rank: tuple[int, int] | None

    @property
    def is_best(self) -> bool:
        """Whether K is not significantly smaller than that of any attention; False with a single seed."""
        return self.rank is not None and self.rank[0] == 1 and not seed_mark(self.gain)

    @property
    def error(self) -> float:
        """Error relative to vanilla's in the worst of the cells at the ceiling; NaN if there is no such cell."""
        errors = [math.exp(cell.error.value) for cell in self.gain.cells if cell.error and cell.is_at_ceiling]
        return max(errors, default=math.nan)

    @property
    def texts(self) -> list[str]:
        """The cells of the table, in the order of :data:`HEADER`."""
        gain, worst = self.gain, self.gain.worst
        return [
            mark_unverified(gain.attention, gain.verified),
            gain_text(gain),
            interval_text(*gain.interval),
            rank_text(self.rank),
            str(worst.cell),
            cell_text(worst),
            gain.solved,
            str(gain.seeds),
            "-" if math.isnan(self.error) else f"{self.error:.2f}",
            steps_text(gain.steps) if gain.steps else "-",
            rates_text(gain.usable_rates),
        ]


def gain_rows(gains: SuiteGains, pattern: str) -> list[GainRow]:
    """Return the rows of one pattern, in the order of K."""
    own = gains.patterns[pattern]
    fixed = {name for name, gain in own.items() if gain.is_complete and not name.endswith(TUNED)}
    verdicts = gains.verdicts(pattern)

    def rank(name: str) -> tuple[int, int]:
        return rank_range(name, {pair: each for pair, each in verdicts.items() if set(pair) <= {*fixed, name}})

    return [GainRow(gain, rank(name) if gain.is_complete else None) for name, gain in own.items()]


def gain_text(gain: PatternGain) -> str:
    """Format K of a pattern, or the number of core cells with results if K requires more."""
    if gain.estimate is None:
        return f"{len(gain.cells)} of {gain.core} cells{seed_mark(gain)}"
    return f"{gain.estimate.value:.1f}{seed_mark(gain)}"


def cell_text(cell: CellGain) -> str:
    """Format K of one cell."""
    return f"{round(cell.own.value, 1) + 0.0:.1f}{ONE_SEED_MARK if len(cell.points) == 1 else ''}"


def seed_mark(gain: PatternGain) -> str:
    """Return the mark of a result with a single seed in any cell, else an empty string."""
    return ONE_SEED_MARK if gain.seeds == 1 else ""


def interval_text(low: float, high: float) -> str:
    """Format the interval of K."""
    return "-" if math.isnan(low) else f"[{low:.1f}, {high:.1f}]"


def steps_text(steps: Estimate) -> str:
    """Format a number of steps with its interval."""
    low, high = steps.interval()
    return f"{steps.value:,.0f}" + ("" if math.isnan(low) else f" [{max(low, 0):,.0f}, {high:,.0f}]")


def rates_text(usable: int | None) -> str:
    """Format the number of usable learning rates of a grid."""
    return "-" if usable is None else f"{usable} of {len(FACTORS)}"


def rank_text(rank: tuple[int, int] | None) -> str:
    """Format a range of ranks."""
    return "-" if rank is None else f"{rank[0]}" if rank[0] == rank[1] else f"{rank[0]} to {rank[1]}"


RELATIONS = {
    Verdict.WORSE: "significantly worse than",
    Verdict.EQUIVALENT: f"equivalent to (within {MARGIN:g} points)",
    Verdict.BETTER: "significantly better than",
    Verdict.UNDECIDED: "undecided against",
    Verdict.ONE_SEED: "not tested (a single seed of either) against",
}


@dataclass(frozen=True)
class PatternVerdict:
    """The verdict on an attention in one pattern.

    Attributes:
        lines: the verdict in sentences.
        rows: the table of K with the attentions of the same pattern; empty without results in a core cell.
    """

    pattern: str
    lines: list[str]
    rows: list[GainRow]


def judge_attention(
    name: str, records: Iterable[Record], reference: tuple[Path, ...] = REFERENCE_DIRS
) -> list[PatternVerdict]:
    """Compare an attention with the reference results.

    Args:
        name: the attention.
        records: records that contain its runs; other attentions are ignored.
        reference: folders of the results it is compared with; its own results there are ignored.
    """
    own = [record for record in records if record.cell["attention"] == name]
    others = [record for record in records_of(reference) if record.cell["attention"] != name]
    results = collect([*own, *others])
    gains = suite_gains(results, invalid_cells(reference))
    patterns = {each.cell.pattern for each in results if name in each.runs or name in each.left_out}
    last = {record.cell["pattern"]: record for record in own}
    return [_verdict(name, last[pattern], results, gains) for pattern in sorted(patterns, key=pattern_rank)]


def _verdict(name: str, record: Record, results: Sequence[CellResults], gains: SuiteGains) -> PatternVerdict:
    pattern = record.cell["pattern"]
    of_pattern = [each for each in results if each.cell.pattern == pattern]
    cells = [gains.cells[each.cell.key][name] for each in of_pattern if name in gains.cells[each.cell.key]]
    own = gains.patterns.get(pattern, {}).get(name)
    rows = gain_rows(gains, pattern) if own else []
    core = [each.cell for each in of_pattern if each.cell.core]
    lines = [_coverage(name, record, own, core), *(_headline(own, rows) if own else [])]
    compared = gains.common([gain.cell.key for gain in (own.cells if own else cells)])
    verdicts = gains.verdicts(pattern) if own else compare(compared)
    lines += _relations(name, verdicts, {other: len(common) for other, common in compared.items()})
    runs = {each.cell.key: each for each in of_pattern}
    lines += [_cell_line(cell, runs[cell.cell.key], gains) for cell in cells]
    lines += [f"not scored: {each.cell}: {each.left_out[name]}" for each in of_pattern if name in each.left_out]
    lines += [
        f"not scored: {each.cell}: it has no anchors" for each in of_pattern if name in each.runs and not each.anchors
    ]
    lines += _ceiling(cells, gains)
    lines.append(_cost(record, [run for cell in cells for run in runs[cell.cell.key].runs[name].values()]))
    lines.append(_verification(record))
    if any(len(cell.points) == 1 for cell in cells):
        lines.append(ONE_SEED_LEGEND)
    return PatternVerdict(pattern, [lines[0], *(f"  {line}" for line in lines[1:])], rows)


def _coverage(name: str, record: Record, own: PatternGain | None, core: Sequence[SuiteCell]) -> str:
    pattern, target = record.cell["pattern"], _target(record)
    have = {gain.cell for gain in own.cells} if own else set()
    missing = [str(cell) for cell in core if cell not in have]
    line = f"{name}, pattern {pattern}: {len(have)} of {len(core)} core cells"
    if own:
        line += f", at least {own.seeds} seed{'s' * (own.seeds != 1)} per cell"
    if missing:
        line += f"; no K without {', '.join(missing)} (`cab run suite=core attention={target} pattern={pattern}`)"
    return line


def _headline(own: PatternGain, rows: Sequence[GainRow]) -> list[str]:
    if own.estimate is None:
        return []
    row = next(row for row in rows if row.gain is own)
    ranked = sum(each.rank is not None and (each is row or not each.gain.attention.endswith(TUNED)) for each in rows)
    interval = "no interval (a single seed)" if math.isnan(own.interval[0]) else f"95% {interval_text(*own.interval)}"
    return [
        f"K {gain_text(own)}, {interval}: share of the gain of softmax attention over no attention that it "
        f"retains, in percent; rank {rank_text(row.rank)} of {ranked}",
        f"solved in {own.solved} runs; worst cell: {own.worst.cell}, K {cell_text(own.worst)}",
    ]


def _relations(name: str, verdicts: dict[tuple[str, str], Verdict], cells: dict[str, int]) -> list[str]:
    found: dict[Verdict, list[str]] = {}
    for (one, other), each in verdicts.items():
        if name in (one, other):
            rival = other if one == name else one
            part = f" ({cells[rival]} of {cells[name]} cells)" if cells[rival] < cells[name] else ""
            found.setdefault(each if one == name else each.reverse, []).append(rival + part)
    return [f"{words}: {', '.join(found[each])}" for each, words in RELATIONS.items() if each in found]


def _cell_line(cell: CellGain, results: CellResults, gains: SuiteGains) -> str:
    anchors = gains.cells[cell.cell.key]
    values = results.values(cell.attention)
    spread = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    trivial = results.baselines.get(cell.cell.trivial_baseline)
    known = [f"{name} {anchors[name].mean:.4g}" for name in ANCHORS]
    known += [f"{cell.cell.trivial_baseline} {trivial:.4g}"] if trivial is not None else []
    line = f"{cell.cell}: {cell.cell.metric} {cell.mean:.4g}{spread} ({', '.join(known)}), K {cell_text(cell)}"
    line += f", solved in {cell.solved} of {len(cell.points)} seeds"
    if cell.steps:
        line += f", after {steps_text(cell.steps)} steps"
    if cell.error and cell.is_at_ceiling:
        line += f", error {math.exp(cell.error.value):.2f} times that of {SOFTMAX}"
    return line + ("" if cell.cell.core else " (not a core cell)")


def _ceiling(cells: Sequence[CellGain], gains: SuiteGains) -> list[str]:
    """Return one warning per cell in which K cannot rank the attention."""
    lines = []
    for cell in cells:
        others = [gain for name, gain in gains.cells[cell.cell.key].items() if name not in ANCHORS]
        close = sum(gain.is_at_ceiling for gain in others)
        if cell.is_at_ceiling and close > 1:
            lines.append(
                f"ceiling: in {cell.cell}, {close} of {len(others)} are within {MARGIN:g} points of vanilla; "
                "K does not rank them"
            )
    return lines


def _cost(record: Record, runs: Sequence[Record]) -> str:
    name, pattern = record.cell["attention"], record.cell["pattern"]
    seconds = [run.cost.cpu_seconds for run in runs if run.cost.cpu_seconds is not None]
    parts = [f"{statistics.fmean(seconds):.0f} CPU seconds per training run"] if seconds else []
    cost = measured_costs().get((name, pattern), MeasuredCost())
    if cost.time is None:
        parts.append(f"not measured against softmax (`cab efficiency {_target(record)} --pattern {pattern}`)")
    else:
        memory = f" and {cost.memory:.2f} times its memory" if cost.memory is not None else ""
        parts.append(f"{cost.time:.2f} times the time of softmax attention{memory} at {LENGTH:,} tokens")
    if cost.state_bytes is not None:
        parts.append(f"decoding takes {cost.decode_ms:.2f} ms per token, with a state of {cost.state_bytes:,} bytes")
    return f"cost: {'; '.join(parts)}"


def _verification(record: Record) -> str:
    if verdict(record, verified_codes()) == "yes":
        return "verified: the code passed `cab verify`"
    return f"not verified: run `cab verify {_target(record)} --pattern {record.cell['pattern']}`"


def _target(record: Record) -> str:
    """Return the name by which commands find the attention, such as FILE.py:Class."""
    return str(record.config["attention"]["name"])
