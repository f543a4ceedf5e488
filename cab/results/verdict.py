"""The verdict on an attention in sentences, from its own runs and the reference results, and its cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.files.text_table import counted
from cab.patterns import pattern_rank
from cab.records.files import REFERENCE_DIRS, record_path
from cab.records.record import Record
from cab.results import cells
from cab.results.cells import ANCHORS, SuiteCell
from cab.results.costs import cost_name, cost_of, is_committed, suite_states
from cab.results.load import FRAME_COLUMNS, OWN, REFERENCE_SOURCE, load, rows_of, runs_of
from cab.results.retained import CELL_KEY, baselines_of, gains_of, suite_runs, unscored
from cab.results.statistics import ONE_SEED_LEGEND, ONE_SEED_MARK, Estimate, Verdict

if TYPE_CHECKING:
    import pandas as pd

ABOUT = ["attention", "label", "pattern", "source", "verified", "config"]
"""Columns with the facts of a run that its verdict names."""
DIVERGED_MARK, SLOTS_MARK = "!", "#"
BOUND_LEGEND = (
    "at most: one-sided 95% bound of K over seeds, adjusted over the attentions of the cell; worse: it is below 98"
)


def verdict_text(gain: Any) -> str:
    """Format the verdict with K, its marks, and its bound, which is at most 100; at the ceiling, the solved seeds.

    Args:
        gain: a row of :func:`cab.results.retained.gains_table`, as a named tuple.
    """
    marks = {ONE_SEED_MARK: gain.seeds == 1, DIVERGED_MARK: gain.diverged, SLOTS_MARK: gain.slots}
    signs = "".join(mark for mark, is_shown in marks.items() if is_shown)
    k = f"K {'≥ ' if 'unfinished' in gain.note else ''}{round(gain.K, 1) + 0.0:.1f}{signs}"
    bounded = f"{k}, at most {min(gain.bound, max(gain.K, 100)):.1f}"
    return {
        Verdict.SOLVED: f"{gain.reached_90} of {gain.seeds} solved",
        Verdict.ONE_SEED: f"{k}, not tested",
        Verdict.UNDECIDED: f"undecided, {bounded}",
        Verdict.WORSE: f"worse than softmax attention, {bounded}",
        Verdict.EQUIVALENT: f"equivalent to softmax attention, {k}",
        Verdict.BETTER: f"better than softmax attention, {k}",
    }[gain.verdict]


def is_named(run: Mapping[Any, Any], name: str) -> bool:
    """Return whether a name is that of a run's attention: in tables, its label, or in commands (FILE.py:Class)."""
    return name in (run["attention"], run["label"], _target(run["config"]))


def frame_of(records: Iterable[Record]) -> pd.DataFrame:
    """Return the frame of own records, which need no file."""
    import pandas as pd

    pairs = [(record_path(Path("own"), f"{run.hash}-{run.attention_code[:8]}"), run) for run in records]
    return pd.DataFrame(rows_of(pairs), columns=list(FRAME_COLUMNS))


def _with_reference(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with all reference results; an own attention of the same name has its code in its name."""
    import pandas as pd

    is_own = frame["source"] == OWN
    if {Path(file).parent.resolve() for file in frame.loc[~is_own, "file"].unique()} >= set(REFERENCE_DIRS):
        return frame
    reference, own = load((), with_reference=True).frame, frame[is_own]
    known, names = set(reference["label"]), []
    for name, label, program in own[["attention", "label", "program"]].itertuples(index=False, name=None):
        coded = f"{label} [{program[:8] or 'unknown'}]"
        names.append(name.replace(label, coded, 1) if label in known and coded not in name else name)
    return pd.concat([reference, own.assign(attention=names)], ignore_index=True)


def judge_attentions(names: Iterable[str], frame: pd.DataFrame) -> dict[str, list[list[str]]]:
    """Compare attentions with softmax attention, and return the lines of the verdict of each per pattern.

    Args:
        names: names of attentions (:func:`is_named`). An attention without own runs is one of the reference results.
        frame: own results. The reference results, whose family of tests each of them joins, are added.
    """
    frame = _with_reference(frame)
    runs = suite_runs(frame)
    gains, everything = gains_of(runs), runs_of(frame)[ABOUT].to_dict("records")
    named = {name: [run for run in everything if is_named(run, name)] for name in names}
    return {name: list(_verdicts(of_name, gains, runs)) for name, of_name in named.items()}


def _verdicts(named: Sequence[Mapping[Any, Any]], gains: pd.DataFrame, runs: pd.DataFrame) -> Iterator[list[str]]:
    """Yield the lines on each name and pattern among the runs of an attention."""
    source = min((run["source"] for run in named), key=(OWN, REFERENCE_SOURCE).index, default=OWN)
    last = {(run["attention"], run["pattern"]): run for run in named if run["source"] == source}
    for (name, pattern), run in sorted(last.items(), key=lambda item: pattern_rank(item[0][1])):
        of_pair = [
            each[(each["source"] == source) & (each["attention"] == name) & (each["pattern"] == pattern)]
            for each in (gains, runs)
        ]
        if name not in ANCHORS and len(of_pair[1]):
            yield _verdict(run, *of_pair)


def _verdict(run: Mapping[Any, Any], gains: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """Return the lines on the attention of a run in its pattern."""
    of_key = {cell.key: cell for cell in cells.suite_cells() if cell.pattern == run["pattern"]}
    scored = gains[gains["seeds"] > 0].sort_values("core", ascending=False, kind="stable")
    core = [cell for cell in of_key.values() if cell.core]
    found = [of_key[key] for key in scored[CELL_KEY].itertuples(index=False, name=None)]
    missing = [str(cell) for cell in core if cell not in found]
    target, pattern = _target(run["config"]), run["pattern"]
    lines = [f"{run['attention']}, pattern {pattern}: {len(core) - len(missing)} of {len(core)} core cells"]
    if missing:
        command = f"cab run suite=core attention={target} pattern={pattern}"
        lines[0] += f"; without {', '.join(missing)} (`{command}`)"
    for gain, cell in zip(scored.itertuples(), found, strict=True):
        head, *details = _summary(gain, cell, runs[(runs[CELL_KEY] == list(cell.key)).all(axis=1)])
        lines += [head, *(f"  {line}" for line in details)]
    lines += [
        f"not scored: {row.task} {row.backbone} {row.pattern}: {row.reason}" for row in unscored(runs).itertuples()
    ]
    command = f"run `cab verify {target} --pattern {pattern}`"
    is_verified = run["verified"] == "yes"
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
    reached = f"reached 90 in {gain.reached_90} of {counted(gain.seeds, 'seed')}"
    low, high = Estimate.of(runs.loc[runs["reason"] == "", "steps"].to_list()).interval()
    interval = "" if math.isnan(low) else f" [{max(low, 0):,.0f}, {high:,.0f}]"
    after = "" if math.isnan(gain.steps) else f", after {gain.steps:,.0f}{interval} steps"
    yield f"{cell.metric} {gain.mean:.4g}{spread} ({known}), {reached}{after}"
    if gain.unfinished:
        yield f"unfinished: {gain.unfinished} of {counted(gain.seeds, 'seed')} still learned when the budget ended"
    if gain.diverged:
        yield f"diverged: {counted(gain.diverged, 'seed')} got worse after the best validation, or without a score"
    if gain.slots:
        yield f"few slots: the options of the suite leave {gain.slots}"


def cost_texts(
    attention: str, pattern: str, program: str, folders: Collection[Path], *, target: str, earlier: str = ""
) -> list[str]:
    """Return sentences about the state and the cost of an attention, from committed costs or those in folders.

    Args:
        program: hash of its code.
        target: the name by which commands find it, such as FILE.py:Class.
        earlier: the digest of its code in an earlier record.
    """
    cost = cost_of(attention, pattern, program, folders, earlier)
    state = (is_committed(attention, program) and suite_states().get(cost_name(attention))) or cost.suite_state
    lines, parts = [], []
    if state and pattern == "CS":
        size = f"{state.numbers:,.0f} numbers" + (" per token" if state.grows else ", constant")
        lines.append(f"decode state: {size}, in the network of recall")
    if cost.time is None:
        parts.append(f"not measured against softmax (`cab efficiency {target} --pattern {pattern}`)")
    else:
        memory = f" and {cost.memory:.2f} times its memory" if cost.memory is not None else ""
        parts.append(f"{cost.time:.2f} times the time of softmax attention{memory} at {cost.length:,} tokens")
    if cost.state_bytes is not None:
        parts.append(f"decoding takes {cost.decode_ms:.2f} ms per token, with a state of {cost.state_bytes:,} bytes")
    if cost.complexity:
        parts.append(f"declared complexity {cost.complexity}")
    return [*lines, f"cost: {'; '.join(parts)}"]


def _target(config: Mapping[str, Any]) -> str:
    """Return the name by which commands find the attention of a run, such as FILE.py:Class."""
    return str(config["attention"]["name"])
