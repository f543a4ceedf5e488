"""Comparison of costs with those of an earlier table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cab.efficiency.cost import Cost
from cab.errors import UserError
from cab.files.text_table import csv_rows, parse_number

IDENTITY = (
    *("attention", "pattern", "phase", "length", "protocol", "packed", "batch_size", "embed_dim", "num_heads", "dtype"),
    *("device", "compiled"),
)
"""Columns in which a row and its former one agree."""
MACHINE = ("hardware", "threads", "torch")
COMPARED_NUMBERS = ("seconds", "bytes", "p10", "p90")
NEEDED = ("attention", "pattern", "phase", "length", "status", *COMPARED_NUMBERS)


@dataclass(frozen=True)
class Former:
    """Measured costs of an earlier table, by the values of :data:`IDENTITY`."""

    costs: Mapping[tuple[str, ...], Mapping[str, float]]
    machines: frozenset[tuple[str, ...]]

    @classmethod
    def read(cls, path: Path) -> Former:
        """Read the output of ``cab efficiency --out``; raises UserError for a file without such costs."""
        if not path.is_file():
            raise UserError(f"no costs at {path}; create them with `cab efficiency --out {path}`")
        costs, machines = {}, set()
        for _, row in csv_rows(path, NEEDED):
            if row["status"] == "ok":
                numbers = {name: parse_number(row[name]) for name in COMPARED_NUMBERS}
                costs[_identity(row)] = {name: value for name, value in numbers.items() if value is not None}
                machines.add(tuple(row.get(name, "") for name in MACHINE))
        if not costs:
            raise UserError(f"{path} has no row of status ok; pass a file of `cab efficiency --out`")
        return cls(costs, frozenset(machines))

    def compare(self, cost: Cost) -> Cost:
        """Return the cost with its ratios to the former one; time changes if the percentiles of both do not overlap."""
        row = {name: str(getattr(cost, name)) for name in IDENTITY}
        former = self.costs.get(_identity(row), {})
        if cost.status != "ok" or not former:
            return cost
        low, high, p10, p90 = former.get("p10"), former.get("p90"), cost.p10, cost.p90
        change = ""
        if low and high and p10 and p90 and low < high and p10 < p90:  # one round has no spread
            change = "slower" if p10 > high else "faster" if p90 < low else ""
        ratios = {
            f"{name}_vs_former": getattr(cost, name) / former[name]
            for name in ("seconds", "bytes")
            if getattr(cost, name) is not None and former.get(name)
        }
        return dataclasses.replace(cost, **ratios, change=change)

    def differences(self, costs: Iterable[Cost]) -> str:
        """Return a note on another machine or version than that of the earlier table, or an empty text."""
        machines = {tuple(str(getattr(cost, name)) for name in MACHINE) for cost in costs}
        if machines == self.machines:
            return ""
        now, before = ("; ".join(sorted(map(" / ".join, found))) for found in (machines, self.machines))
        return f"measured with {now} ({', '.join(MACHINE)}); the earlier table with {before}"


def _identity(row: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of the columns; older files lack some, which then have their default."""
    defaults = {field.name: str(field.default) for field in dataclasses.fields(Cost)}
    return tuple(row.get(name) or defaults[name] for name in IDENTITY)
