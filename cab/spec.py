"""A name with options: of an attention, a backbone, a task or a logger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Spec:
    """Name of something registered, and the options of its constructor."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> Self:
        """Return the spec of a mapping of ``name`` and options."""
        return cls(group["name"], {key: value for key, value in group.items() if key != "name"})
