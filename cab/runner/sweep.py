"""A sweep: the runnable cells that overrides stand for, and what became of each."""

from __future__ import annotations

import itertools
import logging
import shlex
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.types import Override

from cab.config_sources import REGISTRIES
from cab.errors import Unsupported, UserError
from cab.record import Record, Status, record_path
from cab.runner.cell import GROUPS, Cell, runnable_cells, why_not_runnable
from cab.runner.run import Outcome, existing_record, run_cell

log = logging.getLogger("cab")

Job = tuple[dict[str, Any], str]
"""The resolved configuration of a cell, and the command that runs it alone."""


@dataclass
class Report:
    """What came of the cells of one command."""

    outcomes: list[Outcome] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    plan: list[list[str]] = field(default_factory=list)

    def clear(self) -> None:
        for part in (self.outcomes, self.left_out, self.failures, self.plan):
            part.clear()

    def add(self, outcome: Outcome) -> None:
        log.info("%s: %s", words(outcome), outcome.title)
        if outcome.record is not None and outcome.record.status is Status.FAILED:
            self.failures.append(f"{outcome.title}: {outcome.record.error}")
        self.outcomes.append(outcome)

    def add_error(self, error: Exception, about: str) -> None:
        """A cell that wrote no record: left out when it cannot run, else a failure."""
        if isinstance(error, Unsupported):
            self.left_out.append(str(error))
            return
        log.error("%s", error if isinstance(error, UserError) else "".join(traceback.format_exception(error)))
        self.failures.append(f"{about}: {first_line(error)}")


REPORT = Report()
"""Of the command that this process runs."""


def run_here(job: Job) -> None:
    """Run a cell of a sweep in this process; an error of one cell does not stop the others."""
    config, command = job
    try:
        REPORT.add(run_cell(config, command=command))
    except Exception as error:
        REPORT.add_error(error, command)


def command_of(overrides: Iterable[str]) -> str:
    """The command that runs the one cell of these overrides."""
    return "cab run " + shlex.join(overrides)


def words(outcome: Outcome) -> str:
    """What became of the cell, in words."""
    status = Status.FINISHED if outcome.record is None else outcome.record.status
    if outcome.status == "found":
        again = "" if status is Status.FINISHED else f" ({status}; --retry {status} runs it again)"
        return "already there" + again
    if outcome.record is None:
        return outcome.status
    return status if status is Status.FINISHED else f"{status} ({outcome.record.error})"


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def expand(overrides: Sequence[Override]) -> tuple[list[list[str]], list[str]]:
    """The cells that overrides with lists of values stand for.

    A group that is not named (task, dataset, backbone, pattern, attention) means all that can run; of the data sets
    all but generated ones. An option of an attention, backbone or task goes to those that have it.

    Returns:
        The overrides of every runnable cell; and why named combinations are left out, a line each.
    """
    named = {o.key_or_group: [str(v) for v in _values(o)] for o in overrides if o.key_or_group in GROUPS}
    others = [(o.key_or_group, _strings(o)) for o in overrides if o.key_or_group not in GROUPS]
    runnable = dict.fromkeys(c for c in runnable_cells() if "dataset" in named or c[1] != "synthetic")
    choices = [named.get(group, list(dict.fromkeys(cell[i] for cell in runnable))) for i, group in enumerate(GROUPS)]
    jobs: dict[tuple[str, ...], None] = {}
    for cell in itertools.product(*choices):
        if cell in runnable:
            groups = dict(zip(GROUPS, cell, strict=True))
            taken = [strings for key, strings in others if _applies(key, groups)]
            for chosen in itertools.product(*taken):
                jobs[(*(f"{group}={name}" for group, name in groups.items()), *chosen)] = None
    return [list(job) for job in jobs], _left_out(named, runnable)


def _left_out(named: Mapping[str, list[str]], runnable: Iterable[tuple[str, ...]]) -> list[str]:
    """Why combinations of named groups run in no cell at all, each reason once."""
    places = [GROUPS.index(group) for group in GROUPS if group in named]
    possible = {tuple(cell[place] for place in places) for cell in runnable}
    reasons: dict[str, None] = {}
    for wanted in itertools.product(*(named[GROUPS[place]] for place in places)):
        if wanted not in possible:
            reasons[why_not_runnable(dict(zip((GROUPS[place] for place in places), wanted, strict=True)))] = None
    return list(reasons)


def _applies(key: str, groups: Mapping[str, str]) -> bool:
    """Whether an override like ``attention.num_landmarks`` is of this cell's attention."""
    group, _, option = key.partition(".")
    if not option or group not in groups or group in ("dataset", "pattern"):
        return True
    return option.partition(".")[0] in REGISTRIES[group].get(groups[group]).options


def _values(override: Override) -> list[Any]:
    return list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]


def _strings(override: Override) -> list[str]:
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        raise UserError(f"{override.input_line}: name the values of a sweep, separated by commas, or as range(1,4)")
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def to_do(jobs: Iterable[Job]) -> Iterator[tuple[Cell, Job]]:
    """The cells that have no record yet; what is wrong with one is known before it is given to another process."""
    for config, command in jobs:
        try:
            cell = Cell.from_config(config)
            record = existing_record(cell)
        except Exception as error:
            REPORT.add_error(error, command)
            continue
        if record is None:
            yield cell, (config, command)
        else:
            REPORT.add(Outcome(cell.title, "found", record))


def collect(cell: Cell, *, otherwise: str) -> None:
    """What another process has made of the cell: the record on disk is the truth, ``otherwise`` the words for none."""
    try:
        record = Record.read(record_path(cell.results_dir, cell.hash))
    except UserError:
        REPORT.failures.append(f"{cell.title}: {otherwise}")
    else:
        REPORT.add(Outcome(cell.title, "trained", record))
