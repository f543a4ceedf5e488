"""The verdict on an attention in sentences, from its own runs and the reference results, and its cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.patterns import pattern_rank
from cab.records.files import REFERENCE_DIRS
from cab.records.record import Record
from cab.records.results import with_program_names
from cab.records.verified import verdict, verified_codes
from cab.results import cells
from cab.results.cells import ANCHORS, SuiteCell, records_of
from cab.results.costs import cost_name, cost_of, is_committed
from cab.results.gain import gains_of
from cab.results.runs import CELL, OWN, baselines_of, suite_runs, unscored
from cab.results.state import suite_states
from cab.results.statistics import ONE_SEED_LEGEND, ONE_SEED_MARK, Estimate, Verdict

if TYPE_CHECKING:
    import pandas as pd

DIVERGED_MARK, SLOTS_MARK = "!", "#"
BOUND_LEGEND = (
    "at most: one-sided 95% bound of K over seeds, adjusted over the attentions of the cell; worse: it is below 98"
)


def verdict_text(gain: Any) -> str:
    """Format the verdict with K, its marks, and its bound, which is at most 100; at the ceiling, the solved seeds.

    Args:
        gain: a row of :func:`cab.results.gain.gains_frame`, as a named tuple.
    """
    marks = {ONE_SEED_MARK: gain.seeds == 1, DIVERGED_MARK: gain.diverged, SLOTS_MARK: gain.slots}
    signs = "".join(mark for mark, is_shown in marks.items() if is_shown)
    k = f"K {'≥ ' if 'unfinished' in gain.note else ''}{round(gain.K, 1) + 0.0:.1f}{signs}"
    bounded = f"{k}, at most {min(gain.bound, max(gain.K, 100)):.1f}"
    return {
        Verdict.SOLVED: f"{gain.solved} of {gain.seeds} solved",
        Verdict.ONE_SEED: f"{k}, not tested",
        Verdict.UNDECIDED: f"undecided, {bounded}",
        Verdict.WORSE: f"worse than softmax attention, {bounded}",
        Verdict.EQUIVALENT: f"equivalent to softmax attention, {k}",
        Verdict.BETTER: f"better than softmax attention, {k}",
    }[gain.verdict]


def is_named(record: Record, name: str) -> bool:
    """Return whether a name is that of a record's attention: in tables, or in commands, such as FILE.py:Class."""
    return name in (record.cell["attention"], record.config["attention"]["name"])


def judge_attentions(
    names: Iterable[str], records: Iterable[Record], reference: tuple[Path, ...] = REFERENCE_DIRS
) -> dict[str, list[list[str]]]:
    """Compare attentions with softmax attention, and return the lines of the verdict of each per pattern.

    Args:
        names: names in tables, or in commands, such as FILE.py:Class.
        records: records that contain their runs; other attentions are ignored.
        reference: folders of the results whose family of tests each of them joins.
    """
    records, known, names = list(records), list(records_of(reference)), list(names)
    named = with_program_names([*known, *records])  # other code under a reference's name has another name
    pairs = list(zip(records, named[len(known) :], strict=True))
    mine = {name: [run for record, run in pairs if is_named(record, name) or is_named(run, name)] for name in names}
    runs = suite_runs(named[: len(known)], {id(run): run for own in mine.values() for run in own}.values())
    gains = gains_of(runs)
    own = gains[gains["source"] == OWN], runs[runs["source"] == OWN]
    return {name: list(_verdicts(of_name, *own)) for name, of_name in mine.items()}


def _verdicts(records: Iterable[Record], gains: pd.DataFrame, runs: pd.DataFrame) -> Iterator[list[str]]:
    """Yield the lines on each name and pattern among the records of an attention."""
    last = {(str(record.cell["attention"]), str(record.cell["pattern"])): record for record in records}
    for (name, pattern), record in sorted(last.items(), key=lambda item: pattern_rank(item[0][1])):
        of_pair = [each[(each["attention"] == name) & (each["pattern"] == pattern)] for each in (gains, runs)]
        if name not in ANCHORS and len(of_pair[1]):
            yield _verdict(record, *of_pair)


def _verdict(record: Record, gains: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """Return the lines on an attention in a pattern."""
    pattern = str(record.cell["pattern"])
    of_key = {cell.key: cell for cell in cells.suite_cells() if cell.pattern == pattern}
    scored = gains[gains["seeds"] > 0].sort_values("core", ascending=False, kind="stable")
    core = [cell for cell in of_key.values() if cell.core]
    found = [of_key[key] for key in scored[CELL].itertuples(index=False, name=None)]
    missing = [str(cell) for cell in core if cell not in found]
    lines = [f"{record.cell['attention']}, pattern {pattern}: {len(core) - len(missing)} of {len(core)} core cells"]
    if missing:
        command = f"cab run suite=core attention={_target(record)} pattern={pattern}"
        lines[0] += f"; without {', '.join(missing)} (`{command}`)"
    for gain, cell in zip(scored.itertuples(), found, strict=True):
        head, *details = _summary(gain, cell, runs[(runs[CELL] == list(cell.key)).all(axis=1)])
        lines += [head, *(f"  {line}" for line in details)]
    lines += [
        f"not scored: {row.task} {row.backbone} {row.pattern}: {row.reason}" for row in unscored(runs).itertuples()
    ]
    is_verified = verdict(record, verified_codes()) == "yes"
    command = f"run `cab verify {_target(record)} --pattern {pattern}`"
    lines.append("verified: the code passed `cab verify`" if is_verified else f"not verified: {command}")
    lines += [BOUND_LEGEND] if scored["bound"].notna().any() else []
    lines += [ONE_SEED_LEGEND] if (scored["seeds"] == 1).any() else []
    return [lines[0], *(f"  {line}" for line in lines[1:])]


def _summary(gain: Any, cell: SuiteCell, runs: pd.DataFrame) -> Iterator[str]:
    """Yield a line with the verdict and one with the metric, and remarks on the training."""
    name = ", ".join(filter(None, (cell.ability, str(cell))))
    yield f"{name}: {verdict_text(gain)}{'' if cell.core else ' (not a core cell)'}"
    others = {anchor: Estimate.of(cells.read_anchors()[cell.key].test[anchor]).value for anchor in ANCHORS}
    others |= {name: value for name, value in baselines_of(runs, cell.metric).items() if name == cell.trivial_baseline}
    known = ", ".join(f"{other} {value:.4g}" for other, value in others.items())
    spread = f" ± {gain.sd:.2g}" if gain.sd > 0 else ""
    solved = f"solved in {gain.solved} of {gain.seeds} seeds"
    low, high = Estimate.of(runs.loc[runs["reason"] == "", "steps"].to_list()).interval()
    interval = "" if math.isnan(low) else f" [{max(low, 0):,.0f}, {high:,.0f}]"
    after = "" if math.isnan(gain.steps) else f", after {gain.steps:,.0f}{interval} steps"
    yield f"{cell.metric} {gain.mean:.4g}{spread} ({known}), {solved}{after}"
    if gain.unfinished:
        yield f"unfinished: {gain.unfinished} of {gain.seeds} seeds still learned when the budget ended"
    if gain.diverged:
        yield f"diverged: {gain.diverged} seeds got worse after their best validation, or have no score"
    if gain.slots:
        yield f"few slots: the options of the suite leave {gain.slots}"


def cost_texts(record: Record, folders: Collection[Path]) -> list[str]:
    """Return sentences about the state and the cost of the attention of a record, from committed or stored costs."""
    cost = cost_of(record, folders)
    state = (is_committed(record) and suite_states().get(cost_name(record))) or cost.suite_state
    lines, parts = [], []
    if state and record.cell["pattern"] == "CS":
        size = f"{state.numbers:,.0f} numbers" + (" per token" if state.grows else ", constant")
        lines.append(f"decode state: {size}, in the network of recall")
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
