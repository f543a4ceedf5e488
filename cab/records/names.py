"""Names of attentions in tables: one name in a place is one program with one setting.

Bundled results keep the name of their attention. Other code, other code of the project, and other settings follow the
name in brackets, so their seeds are never averaged.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cab.files.disk import listed
from cab.files.text_table import counted
from cab.records.identity import CONFIGURATION, assignments, changed_modules, differing, settings, value_changes
from cab.records.record import COMPARISON_KEY, Record, Status
from cab.registry.names import is_file
from cab.registry.program import code_of, code_of_location
from cab.registry.registries import ATTENTIONS
from cab.registry.stacks import StackEntry

log = logging.getLogger(__name__)

BUNDLED = "bundled"
"""Code of the reference results, which have rows of their own."""
MIXED_CODE = "mixed code"
"""Mark of an attention whose seeds were run with different code of the project, which the user accepted."""
PLACE = ["preset", *COMPARISON_KEY, "pattern"]
"""Keys of a cell without the attention and the seed; attentions are compared within a place."""
_Places = Mapping[tuple[Any, ...], Sequence[int]]
"""Positions of the runs of each name and place, the newest first."""


def names_of_programs(records: Sequence[Record], *, accept_code: bool = False) -> list[str]:
    """Return the name in tables of the attention of each record.

    Without bundled results, the installed code of a registered attention keeps its name, or else the newest. Seeds of a
    place with other settings, or with other code of the project (unless ``accept_code``), are named after what differs
    from the settings that most runs have, or from the newest code.
    """
    names = [str(record.cell["attention"]) for record in records]
    codes: dict[str, dict[str, list[Record]]] = {}
    for name, record in zip(names, records, strict=True):
        code = BUNDLED if record.is_bundled else record.attention_code or f"unknown {record.hash}"
        codes.setdefault(name, {}).setdefault(code, []).append(record)
    for name, programs in codes.items():
        if len(programs) == 1:
            continue
        named = _named_code(name, programs)
        others = {id(record) for code, of_code in programs.items() if code != named for record in of_code}
        names = [coded(n, r) if id(r) in others else n for n, r in zip(names, records, strict=True)]
        if len(programs.keys() - {BUNDLED}) > 1:
            shown = ", ".join(sorted(code[:8] for code in programs))
            log.warning("%s has results of %d programs: %s; they are separate rows", name, len(programs), shown)
    names = _with_settings(records, names)
    return _with_names_of_projects(records, names, accept_code=accept_code)


def coded(name: str, record: Record) -> str:
    """Return the name of an attention with its code."""
    return f"{name} [{record.attention_code[:8] or 'unknown'}]"


def _named_code(name: str, programs: Mapping[str, list[Record]]) -> str:
    """Return the code that keeps the name of an attention."""
    installed = installed_code(name.partition("(")[0])
    newest = {code: max(record.started for record in records) for code, records in programs.items()}
    return max(programs, key=lambda code: (code == BUNDLED, code == installed, newest[code], code))


def _by_place(records: Sequence[Record], names: Sequence[str]) -> _Places:
    places: dict[tuple[Any, ...], list[int]] = {}
    for i in sorted(range(len(records)), key=lambda i: records[i].started, reverse=True):
        places.setdefault((names[i], *map(records[i].cell.__getitem__, PLACE)), []).append(i)
    return places


def _place_text(place: Sequence[Any]) -> str:
    name, *others = place
    return " ".join(filter(None, map(str, (*others, name))))


def _with_settings(records: Sequence[Record], names: list[str]) -> list[str]:
    """Return the names, followed by the settings that differ from the usual ones of the place.

    Usual are those of the runs whose command sets none of the options that differ, or else of most finished runs.
    """
    for place, runs in _by_place(records, names).items():
        groups: dict[str, list[int]] = {}
        for i in runs if len(runs) > 1 else ():
            values = {key: records[i].config.get(key) for key in CONFIGURATION if key != "seed"}
            groups.setdefault(json.dumps(values, sort_keys=True), []).append(i)
        if len(groups) < 2:
            continue
        compared = {group[0]: (_settings(records[group[0]]), records[group[0]].changed) for group in groups.values()}
        options = differing([*compared.values()])

        def rank(group: list[int], options: Sequence[str] = options) -> tuple[int, int]:
            command = "" if records[group[0]].is_bundled else records[group[0]].command
            is_set = [f"{name}=" in command for name in options]
            return sum(is_set), -sum(records[i].status is Status.FINISHED for i in group)

        standard, *others = sorted(groups.values(), key=rank)
        for group in others:
            own = compared[group[0]]
            if text := ", ".join(assignments(differing([own, compared[standard[0]]]), own[0])):
                if not all(records[i].is_bundled for i in runs):  # the sets of reference results differ by design
                    shown = _place_text(place)
                    log.warning(
                        "%s has %s with other settings: %s; separate row", shown, counted(len(group), "run"), text
                    )
                for i in group:
                    names[i] = f"{names[i]} [{text}]"
    return names


def without_settings(name: str) -> str:
    """Return a name in tables without the settings.

    >>> without_settings("abc [0123abcd] [trainer.learning_rate=0.001, task.lengths=[1, 2]]")
    'abc [0123abcd]'
    """
    return re.sub(r" \[[\w.]+=.*?\](?= \[|$)", "", name)


def _settings(record: Record) -> dict[str, Any]:
    """Return the settings that seeds of one mean share; a tuned learning rate may differ."""
    others = {"seed", *({"trainer.learning_rate"} if record.config.get("tuning") is not None else ())}
    return {name: value for name, value in settings(record.config).items() if name not in others}


def _with_names_of_projects(records: Sequence[Record], names: list[str], *, accept_code: bool) -> list[str]:
    """Return the names, followed by the modules of the project that differ from those of the place's newest run."""
    places = _by_place(records, names).items()
    cells = {place: own for place, runs in places if (own := [i for i in runs if not records[i].is_bundled])}
    _warn_of_versions(records, cells)
    for place, runs in cells.items():
        newest, differing = records[runs[0]].program.modules, dict[str, list[int]]()
        for i in runs[1:]:
            program = records[i].program.modules
            if modules := changed_modules(newest, program):
                more = f" +{len(modules) - 1}" if modules[1:] else ""
                differing.setdefault(f"{modules[0]} {program.get(modules[0], '')[:6]}{more}", []).append(i)
        for text, others in differing.items():
            outcome = "accepted" if accept_code else "separate rows; --accept-code averages them"
            log.warning(
                "%s has %s of other code (%s): %s", _place_text(place), counted(len(others), "result"), text, outcome
            )
            for i in runs if accept_code else others:
                names[i] = f"{place[0]} [{MIXED_CODE if accept_code else text}]"
    return names


def _warn_of_versions(records: Sequence[Record], cells: _Places) -> None:
    """Warn of places whose seeds were run with different versions of the libraries, once per difference."""
    places: dict[str, list[str]] = {}
    for place, runs in cells.items():
        newest = records[runs[0]].versions
        texts = {value_changes(records[i].versions, newest) for i in runs[1:] if records[i].versions != newest}
        for text in texts - {""}:
            places.setdefault(text, []).append(_place_text(place))
    for text, found in places.items():
        log.warning("means over seeds of different versions (%s): %s", text, listed(found, shown=1))


@functools.cache
def installed_code(attention: str) -> str:
    """Return the hash of the code of a registered attention; empty if it is not installed."""
    if is_file(attention) or attention not in ATTENTIONS:
        return ""
    entry = ATTENTIONS.get(attention)
    if isinstance(entry, StackEntry):
        return code_of(entry.cls)
    location = entry.location
    return "" if location.file is None else code_of_location(location.module, location.qualname)
