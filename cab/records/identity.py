"""The identity of a run: its configuration, its program, its data and the versions of the libraries.

A run is named by the hash of its configuration: of what differs from the defaults, so options can be added. Runs are
compared when a record is cached, a run resumes, seeds are averaged or a record is reproduced; :func:`differences` names
what differs. It cannot see data files or environment variables that a module reads: a class declares them in ``reads``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from cab.executed import is_foreign
from cab.files.cache import digest_of
from cab.files.disk import listed
from cab.registry.program import UNKNOWN, can_change_score, digest_now, is_of_cab

T = TypeVar("T")

CONFIGURATION = (
    "task", "dataset", "backbone", "pattern", "attention", "other_attention", "trainer", "preset", "seed", "tuning",
    "engine",
)  # fmt: skip
"""Keys of a configuration that determine a result; all others specify where and how a cell runs."""
OF_MACHINE = ("checkpoint_every", "log_every", "micro_batch_size", "num_workers", "strategy")
"""Options of the trainer for the machine and the log, which are not part of a configuration."""
RESOLVED = ("precision", "float32_matmul_precision")
"""Options of the trainer whose value ``auto`` depends on the device of a run.

A run is identified by ``auto``, since it can be planned on a machine without its GPU. Its record and its checkpoints
have the value that was used. So a record is found wherever it was made, a checkpoint of another precision
is not resumed, and seeds of different precisions have rows of their own.
"""
AUTO = "auto"
DEFAULT_ENGINE = "torch"


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested configuration as one mapping, with names such as ``trainer.learning_rate``."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        inner = flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {}
        values |= inner or {f"{prefix}{name}": value}
    return values


def settings(config: Mapping[str, Any], renamed: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return the values of a resolved configuration that determine a result, by their flat names.

    ``renamed`` has the earlier names of options. An option of :data:`RESOLVED` that is not resolved is left out.
    """
    values = plain(flat({name: config[name] for name in CONFIGURATION if name in config}))
    excluded = {f"trainer.{name}" for name in OF_MACHINE}
    excluded |= {name for each in RESOLVED if values.get(name := f"trainer.{each}") == AUTO}
    return {renamed.get(name, name): value for name, value in values.items() if name not in excluded}


def measured(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the trainer that determine the result: all but :data:`OF_MACHINE`."""
    return {name: value for name, value in trainer.items() if name not in OF_MACHINE}


def configured(config: Mapping[str, Any], changed_options: Collection[str]) -> dict[str, Any]:
    """Return a recorded configuration as it was given: with ``auto`` for what the run resolved (:data:`RESOLVED`).

    ``changed_options`` are the names of the options that differ from their defaults, which the hash is of.
    """
    trainer = config["trainer"]
    auto = {name: AUTO for name in RESOLVED if name in trainer and f"trainer.{name}" not in changed_options}
    return {**config, "trainer": shared({**trainer, **auto})}


def forward_batch_size(config: Mapping[str, Any]) -> int | None:
    """Return the number of examples per forward pass, in which random numbers are drawn and statistics taken."""
    trainer = config["trainer"]
    return trainer.get("micro_batch_size") or trainer.get("batch_size")


_SHARED: dict[str, Any] = {}


def shared(value: T) -> T:
    """Return the first value with the same JSON, not to be changed: most parts of thousands of records are equal."""
    found: T = _SHARED.setdefault(json.dumps(value), value)
    return found


def plain(value: Any) -> Any:
    """Return a value as it is read from JSON."""
    return json.loads(json.dumps(value))


def changed(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the :func:`settings` that differ from their defaults, given by the same names."""
    defaults = plain(defaults)
    return {name: value for name, value in values.items() if name not in defaults or defaults[name] != value}


def hash_of(configuration: Mapping[str, Any]) -> str:
    """Return the name of a run: 16 hexadecimal digits of the SHA-256 of what differs from the defaults."""
    return digest_of(plain(configuration))


def other_engine(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the engine if it is not the default, since a cell with another engine is a different cell."""
    return {} if config["engine"] == DEFAULT_ENGINE else {"engine": config["engine"]}


MOVED = {
    "cab.registry.build": ("e19cefbe151935f3", "cab.construction", "07c07baa26107fd5"),
    "cab.registry.stacks": ("d1ea81fcfbb1a9a8", "cab.construction", "07c07baa26107fd5"),
    "cab.config.run_config": ("0fd33af497a47cbf", "cab.recipe", "3a93c5d0a71f207d"),
    "cab.runner.processes": ("6aba664d8c911f04", "cab.runner.processes", "9de98fcd70861fe1"),
}
"""Modules from which code was moved: the digest before, the module that has the code now, and its digest after."""


@dataclass(frozen=True)
class Program:
    """Digests of the modules of a run by name (:mod:`cab.registry.program`).

    Attributes:
        attention: the modules of plug-ins and users of the attention under test; with others, it is another attention.
        project: all other executed modules: task, backbone, engine, ``cab``, the attention of other layers.
    """

    attention: Mapping[str, str] = field(default_factory=dict)
    project: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def recorded(cls, attention: Mapping[str, str], project: Mapping[str, str]) -> Program:
        """Return a recorded program; in earlier records, the attention has modules of ``cab``, and of any kind."""
        own = {name: digest for name, digest in attention.items() if not is_of_cab(name)}
        modules = {**project, **{name: digest for name, digest in attention.items() if is_of_cab(name)}}
        moved = dict[str, str]()
        for name, (before, new, after) in MOVED.items():
            if name in modules and moved.get(new) in (None, after):
                moved[new] = after if modules[name] == before else modules[name]
        kept = {name: digest for name, digest in modules.items() if can_change_score(name)}
        return cls(own, {**kept, **moved})

    @property
    def modules(self) -> dict[str, str]:
        """Both parts in one."""
        return {**self.attention, **self.project}

    def completed(self, earlier: Program) -> Program:
        """Add the modules that only an earlier run has imported so far, as this run would import them."""
        known = self.modules
        parts = [
            {name: digest for name in part if name not in known and (digest := digest_now(name)) is not None}
            for part in (earlier.attention, earlier.project)
        ]
        return Program({**self.attention, **parts[0]}, {**self.project, **parts[1]})


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Identity of a run, in its record, its folder and its checkpoints.

    Attributes:
        configuration: the resolved values of :func:`settings`.
        program: the modules that were executed.
        data: fingerprint of the data that were read; empty before they are.
        versions: versions of Python and the libraries that compute.
        micro_batch_size: examples per forward pass, in which random numbers are drawn and statistics taken.
    """

    configuration: Mapping[str, Any]
    program: Program
    data: Mapping[str, Any]
    versions: Mapping[str, str]
    micro_batch_size: int | None = None

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        program: Program,
        data: Mapping[str, Any],
        versions: Mapping[str, str],
        renamed: Mapping[str, str] = MappingProxyType({}),
    ) -> Identity:
        """Return the identity of a run with this resolved configuration."""
        return cls(
            configuration=settings(config, renamed),
            program=program,
            data=plain(data),
            versions=versions,
            micro_batch_size=forward_batch_size(config),
        )

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Identity | None:
        """Return the identity that :meth:`to_plain` stored; None if it is damaged or of another version of CAB."""
        try:
            found = cls(**{**values, "program": Program.recorded(**values["program"])})
        except (AttributeError, KeyError, TypeError, ValueError):
            return None
        parts = (found.configuration, found.program.attention, found.program.project, found.data, found.versions)
        return found if all(isinstance(part, dict) for part in parts) else None

    def to_plain(self) -> dict[str, Any]:
        """Return the identity as plain values."""
        return {**vars(self), "program": vars(self.program)}


DIFFERENCE_KINDS = ("configuration", "attention", "project", "data", "versions", "micro_batch_size")
"""Kinds of differences; ``attention`` and ``project`` are the two parts of a program."""

DECISIVE = DIFFERENCE_KINDS[:4]
"""Kinds of differences that make a result another one; of the others, a command warns."""


def differences(earlier: Identity, now: Identity) -> dict[str, str]:
    """Return what differs between two runs, as text by the kind of :data:`DIFFERENCE_KINDS`.

    Values that one of them lacks are not compared: options were added or removed, data were not read yet. A module that
    only one of them executed does not differ, unless it is foreign: the run of the other did not need it.
    """
    was, has = earlier.program, now.program.completed(earlier.program)
    sizes = [{"trainer.micro_batch_size": each.micro_batch_size} for each in (earlier, now)]
    texts = {
        "configuration": value_changes(earlier.configuration, now.configuration),
        "attention": listed(changed_modules(was.attention, has.attention, is_complete=True), shown=4),
        "project": listed(changed_modules(was.project, has.project), shown=4),
        "data": value_changes(earlier.data, now.data, only_shared=not (earlier.data and now.data)),
        "versions": value_changes(earlier.versions, now.versions),
        "micro_batch_size": "" if None in (earlier.micro_batch_size, now.micro_batch_size) else value_changes(*sizes),
    }
    return {kind: text for kind, text in texts.items() if text}


def why_not_resumed(earlier: Identity | None, now: Identity) -> str:
    """Return why a run cannot continue from a state of an earlier one; empty if it can."""
    if earlier is None:
        return "its identity cannot be read"
    changes = differences(earlier, now)
    return "; ".join(described(kind, text) for kind, text in changes.items() if kind in DECISIVE)


def described(kind: str, text: str) -> str:
    """Return the sentence part for a difference."""
    words = {"attention": "other code of the attention", "project": "other code of the project", "data": "other data"}
    return f"{words[kind]} ({text})" if kind in words else text


def changed_modules(one: Mapping[str, str], other: Mapping[str, str], *, is_complete: bool = False) -> list[str]:
    """Return the names of the modules that differ between two parts of a program; an unknown one is equal to no other.

    With ``is_complete``, or if it is foreign, a module that only one of them has differs as well.
    """
    shared = {name for name in one.keys() & other.keys() if one[name] != other[name] or one[name] == UNKNOWN}
    single = {name for name in one.keys() ^ other.keys() if is_complete or is_foreign(name)}
    return sorted(shared | single)


def value_changes(earlier: Mapping[str, Any], now: Mapping[str, Any], *, only_shared: bool = True) -> str:
    """Return the values that differ, such as ``torch was 2.12.0, is 2.13.0``; by default, those that both have."""
    names = [name for name in earlier if name in now] if only_shared else dict.fromkeys([*earlier, *now])
    texts = []
    for name in names:
        was, has = earlier.get(name), now.get(name)
        if isinstance(was, dict) and isinstance(has, dict):
            parts = ({f"{name}.{part}": value for part, value in each.items()} for each in (was, has))
            texts.append(value_changes(*parts, only_shared=False))
        elif was != has:
            texts.append(f"{name} was {was!s:.40}, is {has!s:.40}")
    return ", ".join(filter(None, texts))


def differing(runs: Sequence[tuple[Mapping[str, Any], Collection[str]]]) -> list[str]:
    """Return the sorted names of the settings that differ among runs.

    An option that a run lacks was added since or removed: the run used its default.

    Args:
        runs: the settings of each run by flat names, and the names of those that are not defaults.
    """

    def differs(name: str) -> bool:
        values = [own[name] for own, _ in runs if name in own]
        is_changed = any(name in changed_options for _, changed_options in runs)
        return any(value != values[0] for value in values) or (is_changed and len(values) < len(runs))

    return sorted(filter(differs, {name for own, _ in runs for name in own}))


def assignments(names: Iterable[str], values: Mapping[str, Any]) -> list[str]:
    """Return the settings as they are written in a command, such as ``task.tokenizer=null``."""
    given = {name: values.get(name, "default") for name in names}
    return [f"{name}={'null' if value is None else value}" for name, value in given.items()]


def distinctions(runs: Sequence[tuple[Sequence[str], Mapping[str, Any], Collection[str]]]) -> list[str]:
    """Return the settings of each run that differ among the runs of its cell, such as ``trainer.learning_rate=0.03``.

    Args:
        runs: the names in the cell, the configuration, and the names of the changed options of each run.
    """
    places: dict[tuple[str, ...], list[int]] = {}
    for index, (cell, *_) in enumerate(runs):
        places.setdefault(tuple(cell), []).append(index)
    texts = [""] * len(runs)
    for indices in places.values():
        compared = [(settings(config), options) for _, config, options in [runs[index] for index in indices]]
        names = differing(compared)
        for index, (own, _) in zip(indices, compared, strict=True):
            texts[index] = ", ".join(assignments(names, own))
    return texts
