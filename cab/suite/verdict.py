"""Tables of K, one row per attention and pattern, and the verdict on an attention in sentences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cab.patterns import pattern_rank
from cab.records.record import REFERENCE_DIRS, Record
from cab.records.verified import mark_unverified, verdict, verified_codes
from cab.scoring.costs import LENGTH, cost_of
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
            "-" if gain.usable_rates is None else f"{gain.usable_rates} of {len(FACTORS)}",
        ]


def gain_rows(gains: SuiteGains, pattern: str) -> list[GainRow]:
    """Return the rows of one pattern, in the order of K."""
    of_pattern, verdicts = gains.patterns[pattern], gains.verdicts(pattern)
    ranked = {name for name, gain in of_pattern.items() if gain.is_complete and not name.endswith(TUNED)}

    def rank(name: str) -> tuple[int, int]:
        return rank_range(name, {pair: word for pair, word in verdicts.items() if set(pair) <= {*ranked, name}})

    return [GainRow(gain, rank(name) if gain.is_complete else None) for name, gain in of_pattern.items()]


def gain_text(gain: PatternGain) -> str:
    """Format K of a pattern, or the number of core cells with results if K requires more."""
    if gain.estimate is None:
        return f"{len(gain.cells)} of {gain.core} cells{seed_mark(gain)}"
    return f"{gain.estimate.value:.1f}{seed_mark(gain)}"


def cell_text(cell: CellGain) -> str:
    """Format K of one cell."""
    return f"{round(cell.estimate.value, 1) + 0.0:.1f}{ONE_SEED_MARK if len(cell.points) == 1 else ''}"


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
    runs = [record for record in records if record.cell["attention"] == name]
    results = collect([*runs, *(record for record in records_of(reference) if record.cell["attention"] != name)])
    gains = suite_gains(results, invalid_cells(reference))
    patterns = {result.cell.pattern for result in results if name in result.runs or name in result.left_out}
    last = {record.cell["pattern"]: record for record in runs}
    return [_verdict(name, last[pattern], results, gains) for pattern in sorted(patterns, key=pattern_rank)]


def _verdict(name: str, record: Record, results: Sequence[CellResults], gains: SuiteGains) -> PatternVerdict:
    pattern = str(record.cell["pattern"])
    results = [result for result in results if result.cell.pattern == pattern]
    cells = [gains.cells[result.cell.key].get(name) for result in results]
    scored = [(cell, result) for cell, result in zip(cells, results, strict=True) if cell]
    gain = gains.patterns.get(pattern, {}).get(name)
    rows = gain_rows(gains, pattern) if gain else []
    core = [result.cell for result in results if result.cell.core]
    lines = [_coverage(name, record, gain, core), *(_headline(gain, rows) if gain else [])]
    compared = gains.common([cell.cell.key for cell in (gain.cells if gain else [cell for cell, _ in scored])])
    verdicts = gains.verdicts(pattern) if gain else compare(compared)
    lines += _relations(name, verdicts, {other: len(common) for other, common in compared.items()})
    lines += [_cell_line(cell, result, gains) for cell, result in scored]
    unscored = {result.cell: result.left_out.get(name) for result in results}
    lines += [f"not scored: {cell}: {reason}" for cell, reason in unscored.items() if reason]
    without = [result.cell for result in results if name in result.runs and not result.anchors]
    lines += [f"not scored: {cell}: it has no anchors" for cell in without]
    lines += _ceiling([cell for cell, _ in scored], gains)
    lines.append(_cost(record, [run for _, result in scored for run in result.runs[name].values()]))
    lines.append(_verification(record))
    if any(len(cell.points) == 1 for cell, _ in scored):
        lines.append(ONE_SEED_LEGEND)
    return PatternVerdict(pattern, [lines[0], *(f"  {line}" for line in lines[1:])], rows)


def _coverage(name: str, record: Record, gain: PatternGain | None, core: Sequence[SuiteCell]) -> str:
    pattern = record.cell["pattern"]
    scored = {cell.cell for cell in gain.cells} if gain else set()
    line = f"{name}, pattern {pattern}: {len(scored)} of {len(core)} core cells"
    if gain:
        line += f", at least {gain.seeds} seed{'s' * (gain.seeds != 1)} per cell"
    if missing := [str(cell) for cell in core if cell not in scored]:
        command = f"cab run suite=core attention={_target(record)} pattern={pattern}"
        line += f"; no K without {', '.join(missing)} (`{command}`)"
    return line


def _headline(gain: PatternGain, rows: Sequence[GainRow]) -> list[str]:
    if gain.estimate is None:
        return []
    [row] = [row for row in rows if row.gain is gain]
    others = [other for other in rows if other is row or not other.gain.attention.endswith(TUNED)]
    ranked = sum(other.rank is not None for other in others)
    interval = "no interval (a single seed)" if math.isnan(gain.interval[0]) else f"95% {interval_text(*gain.interval)}"
    return [
        f"K {gain_text(gain)}, {interval}: share of the gain of softmax attention over no attention that it "
        f"retains, in percent; rank {rank_text(row.rank)} of {ranked}",
        f"solved in {gain.solved} runs; worst cell: {gain.worst.cell}, K {cell_text(gain.worst)}",
    ]


def _relations(name: str, verdicts: dict[tuple[str, str], Verdict], cells: dict[str, int]) -> list[str]:
    rivals: dict[Verdict, list[str]] = {}
    for pair, word in verdicts.items():
        if name in pair:
            [rival] = set(pair) - {name}
            share = f" ({cells[rival]} of {cells[name]} cells)" if cells[rival] < cells[name] else ""
            rivals.setdefault(word if pair[0] == name else word.reverse, []).append(rival + share)
    return [f"{relation}: {', '.join(rivals[word])}" for word, relation in RELATIONS.items() if word in rivals]


def _cell_line(cell: CellGain, results: CellResults, gains: SuiteGains) -> str:
    anchors = gains.cells[cell.cell.key]
    values = results.values(cell.attention)
    deviation = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    trivial = results.baselines.get(cell.cell.trivial_baseline)
    others = [f"{name} {anchors[name].mean:.4g}" for name in ANCHORS]
    others += [f"{cell.cell.trivial_baseline} {trivial:.4g}"] if trivial is not None else []
    line = f"{cell.cell}: {cell.cell.metric} {cell.mean:.4g}{deviation} ({', '.join(others)}), K {cell_text(cell)}"
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
            share = f"{close} of {len(others)} are within {MARGIN:g} points of vanilla"
            lines.append(f"ceiling: in {cell.cell}, {share}; K does not rank them")
    return lines


def _cost(record: Record, runs: Sequence[Record]) -> str:
    seconds = [run.cost.cpu_seconds for run in runs if run.cost.cpu_seconds is not None]
    parts = [f"{statistics.fmean(seconds):.0f} CPU seconds per training run"] if seconds else []
    cost = cost_of(record, Path(str(record.config.get("results_dir"))))
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


def _verification(record: Record) -> str:
    if verdict(record, verified_codes()) == "yes":
        return "verified: the code passed `cab verify`"
    return f"not verified: run `cab verify {_target(record)} --pattern {record.cell['pattern']}`"


def _target(record: Record) -> str:
    """Return the name by which commands find the attention, such as FILE.py:Class."""
    return str(record.config["attention"]["name"])
