"""Numbers by name, as several outputs print them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from tests.helpers.printed_tables import Number

Name = tuple[str, ...]
"""Source, normalization, quantity and place of a number."""


class NamedNumbers:
    """Values of each name, by output; None: the output says that it has no value."""

    def __init__(self) -> None:
        self.values: dict[Name, dict[str, list[Number | None]]] = defaultdict(lambda: defaultdict(list))

    def add(self, output: str, name: Name, value: Number | None) -> None:
        if name[2].startswith("seeds") and not (value and value.value):
            value = None  # without a value: no seeds, or seeds that the paper does not report
        self.values[name][output].append(value)

    def shared(self) -> list[Name]:
        """Names that two or more outputs print."""
        return [name for name, printed in self.values.items() if len(printed) > 1]

    def alongside(self, other: NamedNumbers, sources: Collection[str]) -> NamedNumbers:
        """Names of these sources that both have, with the values of both."""
        both = NamedNumbers()
        for name in self.values.keys() & other.values.keys():
            if name[0] in sources:
                alone = {f"{output} alone": values for output, values in self.values[name].items()}
                both.values[name].update(alone | other.values[name])
        return both

    def conflicts(self) -> dict[Name, dict[str, float | None]]:
        """Names with more than one value, with a value per output."""
        found: dict[Name, dict[str, float | None]] = {}
        for name, printed in self.values.items():
            known: dict[str, list[Number | None]]
            known = {output: list(filter(None, values)) or [None] for output, values in printed.items()}
            each = [value for values in known.values() for value in values]
            present = [value for value in each if value]
            if 0 < len(present) < len(each) or any(not a.is_close(b) for a in present for b in present):
                found[name] = {output: value and value.value for output, (value, *_) in known.items()}
        return found
