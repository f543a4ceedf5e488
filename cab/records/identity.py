"""What identifies a run: its configuration, which its hash is of, and its program and data.

Program and data are fixed when they are loaded, and compared wherever results meet. They are in the folder of a run, in
its checkpoints and in its record. A cached record of other data is refused, a run of other code or data is not resumed,
and results of different code are different rows of every table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cab.registry.registries import is_file

RUN_KEYS = ("results_dir", "data_root", "data", "device", "force", "retry", "logger", "cluster", "engine", "profile")
"""Keys that specify where and how a cell runs; all other keys identify it and determine its hash."""
MACHINE_KEYS = ("checkpoint_every", "log_every", "micro_batch_size", "num_workers", "strategy")
"""Settings of the trainer for the machine and the log.

Of these, ``micro_batch_size`` can change the result (:class:`Origin`).
"""
DEFAULT_ENGINE = "torch"


def identity_of(
    config: Mapping[str, Any],
    *,
    task_version: int,
    initial_weights: Mapping[str, Any],
    programs: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what :func:`cell_hash` hashes.

    ``initial_weights`` identifies the weights that training starts from; empty for random ones. ``programs`` are the
    hashes of the code of :func:`attention_files`: files of one name can be different programs.
    """
    keys = {key: value for key, value in config.items() if key not in RUN_KEYS}
    keys["trainer"] = measured(keys["trainer"])
    keys |= {"programs": dict(programs)} if programs else {}
    return {**keys, **other_engine(config), **initial_weights, "task_version": task_version}


def cell_hash(identity: Mapping[str, Any]) -> str:
    """Return the name of a run: the first 16 hexadecimal digits of the SHA-256 of its cell's identity."""
    plain = json.loads(json.dumps(identity))  # as in a record, where all keys are text
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def attention_files(config: Mapping[str, Any]) -> list[str]:
    """Return the names of the attentions of a configuration that are classes in files."""
    others = config.get("other_attention") or ()
    specs = [config["attention"], *(others.values() if isinstance(others, Mapping) else [others])]
    names = [spec["name"] if isinstance(spec, Mapping) else spec for spec in specs]
    return sorted({name for name in names if name and is_file(name)})


def measured(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the trainer that determine the result: all but :data:`MACHINE_KEYS`."""
    return {name: value for name, value in trainer.items() if name not in MACHINE_KEYS}


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested configuration as one mapping, with names such as ``trainer.learning_rate``."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        inner = flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {}
        values |= inner or {f"{prefix}{name}": value}
    return values


def distinctions(runs: Sequence[tuple[Sequence[str], Mapping[str, Any]]]) -> list[str]:
    """Return the settings of each run that differ among the runs of its cell, such as ``trainer.learning_rate=0.03``.

    Args:
        runs: the names in the cell and the configuration of each run.
    """
    ignored = {*RUN_KEYS, *(f"trainer.{name}" for name in MACHINE_KEYS)}
    settings = [
        {name: value for name, value in flat(config).items() if ignored.isdisjoint((name, name.partition(".")[0]))}
        for _, config in runs
    ]
    examples: dict[tuple[str, ...], dict[str, Any]] = {}
    different: dict[tuple[str, ...], set[str]] = {}
    for (cell, _), one in zip(runs, settings, strict=True):
        other = examples.setdefault(tuple(cell), one)
        names = {name for name in {**other, **one} if one.get(name) != other.get(name)}
        different.setdefault(tuple(cell), set()).update(names)
    return [
        ", ".join(f"{name}={value}" for name, value in one.items() if name in different[tuple(cell)])
        for (cell, _), one in zip(runs, settings, strict=True)
    ]


def other_engine(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the engine if it is not the default, since a cell with another engine is a different cell."""
    return {} if config["engine"] == DEFAULT_ENGINE else {"engine": config["engine"]}


class Changes(dict[str, str]):
    """What differs between two origins: text with both values, by attribute of :class:`Origin`."""

    @property
    def obstacles(self) -> str:
        """Reasons why a run cannot be resumed: another program or other data; empty if it can."""
        return "; ".join(text for name, text in self.items() if name != "micro_batch_size")


@dataclass(frozen=True)
class Origin:
    """Program and data of a run; empty values are unknown and equal to every other.

    Attributes:
        program: hash of the code of the attention under test.
        data: fingerprint of the data.
        micro_batch_size: examples per forward pass. It is not part of the run's hash, but random numbers are drawn and
            statistics taken per forward pass.
    """

    program: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    micro_batch_size: int | None = None

    @classmethod
    def of(cls, program: str, data: Mapping[str, Any], trainer: Mapping[str, Any]) -> Origin:
        """Create the origin of a run with these settings of the trainer."""
        size = trainer.get("micro_batch_size") or trainer.get("batch_size")
        return cls(program, json.loads(json.dumps(data)), size)

    def changes(self, now: Origin) -> Changes:
        """Return what differs between this origin of an earlier run and that of a run now."""
        texts = Changes()
        if self.program and now.program and self.program != now.program:
            texts["program"] = f"the hash of the attention's code was {self.program}, is {now.program}"
        if self.data and now.data and self.data != now.data:
            names = [name for name in {**self.data, **now.data} if self.data.get(name) != now.data.get(name)]
            values = (f"{name} was {self.data.get(name)!s:.40}, is {now.data.get(name)!s:.40}" for name in names)
            texts["data"] = f"different data ({', '.join(values)})"
        if None not in (sizes := (self.micro_batch_size, now.micro_batch_size)) and sizes[0] != sizes[1]:
            texts["micro_batch_size"] = f"trainer.micro_batch_size was {sizes[0]}, is {sizes[1]}"
        return texts
