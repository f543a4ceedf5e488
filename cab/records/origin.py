"""Which program and which data made a result: fixed when they are loaded, and compared wherever results meet.

The origin of a run is in its folder, in its checkpoints and in its record. A cached record of other data is refused, a
run of other code or data is not resumed, and results of different code are different rows of every table.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cab.records.record import Record
from cab.registry.code_hash import attention_hash
from cab.registry.registries import ATTENTIONS, is_file

log = logging.getLogger(__name__)


class Changes(dict[str, str]):
    """What differs between two origins: text with both values, by attribute of :class:`Origin`."""

    @property
    def other_run(self) -> str:
        """Reasons why a run cannot be resumed: another program or other data; empty if there are none."""
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

    @classmethod
    def of_record(cls, record: Record) -> Origin:
        """Return the origin of a recorded run."""
        return cls.of(record.attention_code, record.data, record.config["trainer"])

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


def separate_programs(records: Iterable[Record]) -> dict[tuple[str, str], str]:
    """Return the name in tables of each program that shares the name of an attention with another one.

    The installed code of a registered attention keeps the name, otherwise the newest program. The name of any other is
    followed by its hash, so that results of different code are never averaged.

    Returns:
        Names by attention and hash of its code; an attention with a single program is missing.
    """
    started: dict[str, dict[str, str]] = {}
    for record in records:
        if record.attention_code:
            programs = started.setdefault(str(record.cell["attention"]), {})
            programs[record.attention_code] = max(record.started, programs.get(record.attention_code, ""))
    names: dict[tuple[str, str], str] = {}
    for attention, programs in started.items():
        if len(programs) > 1:
            installed = installed_code(attention.partition("(")[0])
            first = max(programs, key=lambda code: (code == installed, programs[code], code))
            names |= {(attention, code): f"{attention} [{code[:8]}]" for code in programs if code != first}
            log.warning(
                "%s has results of %d programs: %s; those of older ones are separate rows. Delete their records, or "
                "rerun their cells with force=true", attention, len(programs), ", ".join(code[:8] for code in programs),
            )  # fmt: skip
    return names


def with_program_names(records: Iterable[Record]) -> list[Record]:
    """Return the records with the names of :func:`separate_programs`."""
    records = list(records)
    names = separate_programs(records)
    keys = [(record.cell["attention"], record.attention_code) for record in records]
    return [
        dataclasses.replace(record, cell={**record.cell, "attention": names[key]}) if key in names else record
        for record, key in zip(records, keys, strict=True)
    ]


@functools.cache
def installed_code(attention: str) -> str:
    """Return the hash of the code of a registered attention; empty if it is not installed."""
    if is_file(attention) or attention not in ATTENTIONS:
        return ""
    place = ATTENTIONS.get(attention).place
    return "" if place.file is None else attention_hash(place.qualname, place.file, place.module)
