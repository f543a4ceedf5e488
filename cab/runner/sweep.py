"""Expand the overrides of a sweep into runnable cells."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override

from cab.config.compose import parse_overrides, quoted, text_of
from cab.config.sources import REGISTRIES
from cab.errors import UserError
from cab.records.results import is_generated
from cab.registry.registries import TASKS, is_file, name_of_file
from cab.runner.cell import GROUPS, runnable_cells, why_not_runnable


def expand(arguments: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Expand overrides with lists of values into cells.

    A group that is not named (task, dataset, backbone, pattern, attention) means all runnable values, without generated
    data sets and tasks outside the index. An option of an attention, backbone or task applies to those that have it.

    Returns:
        The overrides of every runnable cell, and one message per reason why named combinations are skipped.
    """
    overrides = parse_overrides(list(arguments))
    named = {o.key_or_group: [_name(v) for v in _values(o)] for o in overrides if o.key_or_group in GROUPS}
    others = [(o.key_or_group, _strings(o)) for o in overrides if o.key_or_group not in GROUPS]
    usual = {task.name for task in TASKS if task.in_index}
    runnable = dict.fromkeys(
        cell
        for cell in runnable_cells()
        if ("dataset" in named or not is_generated(cell[1])) and ("task" in named or cell[0] in usual)
    )
    choices = [named.get(group, list(dict.fromkeys(cell[i] for cell in runnable))) for i, group in enumerate(GROUPS)]
    jobs: dict[tuple[str, ...], None] = {}
    for cell in itertools.product(*choices):
        if cell in runnable:
            groups = dict(zip(GROUPS, cell, strict=True))
            taken = [strings for key, strings in others if _applies(key, groups)]
            for chosen in itertools.product(*taken):
                jobs[(*(f"{group}={quoted(name)}" for group, name in groups.items()), *chosen)] = None
    return [list(job) for job in jobs], _left_out(named, runnable)


def _left_out(named: Mapping[str, list[str]], runnable: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the distinct reasons why combinations of named groups cannot run."""
    places = [GROUPS.index(group) for group in GROUPS if group in named]
    possible = {tuple(cell[place] for place in places) for cell in runnable}
    reasons: dict[str, None] = {}
    for wanted in itertools.product(*(named[GROUPS[place]] for place in places)):
        if wanted not in possible:
            reasons[why_not_runnable(dict(zip((GROUPS[place] for place in places), wanted, strict=True)))] = None
    return list(reasons)


def _applies(key: str, groups: Mapping[str, str]) -> bool:
    """Return whether an override such as ``attention.num_landmarks`` applies to a cell with these groups."""
    group, _, option = key.partition(".")
    if not option or group not in groups or group in ("dataset", "pattern"):
        return True
    return option.partition(".")[0] in REGISTRIES[group].get(groups[group]).options


def _values(override: Override) -> list[Any]:
    return list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]


def _name(value: Any) -> str:
    """Return the name in a group, for a class in a file with one path."""
    name = text_of(value)
    return name_of_file(name) if is_file(name) else name


def _strings(override: Override) -> list[str]:
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        raise UserError(f"{override.input_line}: list the values of a sweep, separated by commas, or use range(1,4)")
    return [f"{key}={value}" for value in override.sweep_string_iterator()]
