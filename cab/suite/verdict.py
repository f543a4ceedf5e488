"""The verdict on an attention in sentences: one paragraph per pattern."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cab.patterns import pattern_rank
from cab.records.record import Record
from cab.records.results import MINI_DIR, whole_records
from cab.records.verified import verdict, verified_codes
from cab.scoring.measured_costs import LENGTH, MeasuredCost, measured_costs
from cab.scoring.statistics import MARGIN, ONE_SEED_LEGEND, Verdict
from cab.suite.anchors import ATTENTIONS, SOFTMAX
from cab.suite.check import invalid_cells
from cab.suite.gain import CellGain, PatternGain, SuiteGains, compare, suite_gains
from cab.suite.results import CellResults, collect
from cab.suite.table import GainRow, cell_text, gain_rows, interval_text, rank_text

RELATIONS = {
    Verdict.WORSE: "significantly worse than",
    Verdict.EQUIVALENT: f"equivalent to (within {MARGIN:g} points)",
    Verdict.BETTER: "significantly better than",
    Verdict.UNDECIDED: "undecided against",
    Verdict.ONE_SEED: "not tested against (a single seed)",
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


def judge_attention(name: str, records: Iterable[Record], reference: Path = MINI_DIR) -> list[PatternVerdict]:
    """Compare an attention with the reference results.

    Args:
        name: the attention.
        records: records that contain its runs; other attentions are ignored.
        reference: folder of the results it is compared with; its own results there are ignored.
    """
    own = [record for record in records if record.cell["attention"] == name]
    others = [record for _, record in whole_records(reference, []) if record.cell["attention"] != name]
    results = collect([*own, *others])
    gains = suite_gains(results, invalid_cells(reference))
    patterns = {each.cell.pattern for each in results if name in each.runs or name in each.left_out}
    status = {record.cell["pattern"]: verdict(record, verified_codes()) for record in own}
    return [_verdict(name, pattern, results, gains, status[pattern]) for pattern in sorted(patterns, key=pattern_rank)]


def _verdict(name: str, pattern: str, results: Sequence[CellResults], gains: SuiteGains, status: str) -> PatternVerdict:
    cells = [gains.cells[each.cell.key][name] for each in results if _has_gain(each, gains, name, pattern)]
    own = gains.patterns.get(pattern, {}).get(name)
    lines = [_coverage(name, pattern, own, results)]
    if own:
        rows = gain_rows(gains, pattern)
        compared, verdicts = gains.patterns[pattern], gains.verdicts(pattern)
        lines += [*_headline(own, rows), *_relations(name, verdicts, {n: len(g.cells) for n, g in compared.items()})]
    else:
        rows = []
        own_cells = [gains.cells[cell.cell.key] for cell in cells]
        names = dict.fromkeys(other for cell in own_cells for other in cell)
        everyone = {other: [cell[other] for cell in own_cells if other in cell] for other in names}
        lines += _relations(name, compare(everyone), {n: len(g) for n, g in everyone.items()})
    by_key = {each.cell.key: each for each in results}
    lines += [_cell_line(cell, by_key[cell.cell.key], gains) for cell in cells]
    lines += [
        f"not scored: {each.cell}: {each.left_out[name]}" for each in results if _is_left_out(each, name, pattern)
    ]
    lines += _ceiling(cells, gains)
    lines.append(
        f"cost: {_cost(name, pattern, [run for c in cells for run in by_key[c.cell.key].runs[name].values()])}"
    )
    lines.append(_verification(name, pattern, status))
    if any(len(cell.points) == 1 for cell in cells):
        lines.append(ONE_SEED_LEGEND)
    return PatternVerdict(pattern, [lines[0], *(f"  {line}" for line in lines[1:])], rows)


def _has_gain(results: CellResults, gains: SuiteGains, name: str, pattern: str) -> bool:
    return results.cell.pattern == pattern and name in gains.cells[results.cell.key]


def _is_left_out(results: CellResults, name: str, pattern: str) -> bool:
    return results.cell.pattern == pattern and name in results.left_out


def _coverage(name: str, pattern: str, own: PatternGain | None, results: Sequence[CellResults]) -> str:
    core = [each.cell for each in results if each.cell.core and each.cell.pattern == pattern]
    have = {gain.cell for gain in own.cells} if own else set()
    missing = [str(cell) for cell in core if cell not in have]
    line = f"{name}, pattern {pattern}: {len(have)} of {len(core)} core cells"
    if own:
        line += f", at least {own.seeds} seed{'s' * (own.seeds != 1)} per cell"
    return line + (f"; no K without {', '.join(missing)}" if missing else "")


def _headline(own: PatternGain, rows: Sequence[GainRow]) -> list[str]:
    if own.estimate is None:
        return []
    row = next(row for row in rows if row.gain is own)
    ranked = sum(each.rank is not None for each in rows)
    interval = "no interval (a single seed)" if math.isnan(own.interval[0]) else f"95% {interval_text(*own.interval)}"
    return [
        f"K {own.estimate.value:.1f}, {interval}: share of the gain of softmax attention over no attention that it "
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
    known = [f"{name} {anchors[name].mean:.4g}" for name in ATTENTIONS]
    known += [f"{cell.cell.trivial_baseline} {trivial:.4g}"] if trivial is not None else []
    line = f"{cell.cell}: {cell.cell.metric} {cell.mean:.4g}{spread} ({', '.join(known)}), K {cell_text(cell)}"
    line += f", solved in {cell.solved} of {len(cell.points)} seeds"
    if cell.error and cell.is_at_ceiling:
        line += f", error {math.exp(cell.error.value):.2f} times that of {SOFTMAX}"
    return line + ("" if cell.cell.core else " (not a core cell)")


def _ceiling(cells: Sequence[CellGain], gains: SuiteGains) -> list[str]:
    """Return one warning per cell in which K cannot rank the attention."""
    lines = []
    for cell in cells:
        others = [gain for name, gain in gains.cells[cell.cell.key].items() if name not in ATTENTIONS]
        close = sum(gain.is_at_ceiling for gain in others)
        if cell.is_at_ceiling and close > 1:
            lines.append(
                f"ceiling: in {cell.cell}, {close} of {len(others)} are within {MARGIN:g} points of vanilla; "
                "K does not rank them, so their errors are compared"
            )
    return lines


def _cost(name: str, pattern: str, runs: Sequence[Record]) -> str:
    seconds = [run.cost.cpu_seconds for run in runs if run.cost.cpu_seconds is not None]
    parts = [f"{statistics.fmean(seconds):.0f} CPU seconds per training run"] if seconds else []
    cost = measured_costs().get((name, pattern), MeasuredCost())
    if cost.time is None:
        parts.append(f"not measured against softmax (`cab efficiency {name} --pattern {pattern}`)")
    else:
        memory = f" and {cost.memory:.2f} times its memory" if cost.memory is not None else ""
        parts.append(f"{cost.time:.2f} times the time of softmax attention{memory} at {LENGTH:,} tokens")
    if cost.state_bytes is not None:
        parts.append(f"decoding takes {cost.decode_ms:.2f} ms per token, with a state of {cost.state_bytes:,} bytes")
    return "; ".join(parts)


def _verification(name: str, pattern: str, status: str) -> str:
    if status == "yes":
        return "verified: the code passed `cab verify`"
    return f"not verified: run `cab verify {name} --pattern {pattern}`"
