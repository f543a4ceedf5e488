"""Expansion of `cab run suite=core` and `cab run suite=mini`."""

from __future__ import annotations

from collections.abc import Sequence

from cab.errors import UserError, unknown_name
from cab.patterns import LONG_NAMES
from cab.suite.cells import PRESET, SuiteCell, suite_cells

SUITES = ("core", "mini")
"""The cells that a score requires, and all cells."""
PARTS = ("task", "backbone", "pattern")
"""Groups that select cells of a suite."""


def suite_sweeps(overrides: Sequence[str]) -> list[list[str]] | None:
    """Expand ``suite=NAME`` among the overrides to one sweep per cell; return None if it is not among them.

    Raises:
        UserError: the suite or a part of it does not exist, the overrides set data set or preset, or they lack an
            attention.
    """
    given = dict(override.partition("=")[::2] for override in overrides)
    if "suite" not in given:
        return None
    suite = given.pop("suite")
    if suite not in SUITES:
        raise unknown_name("suite", suite, SUITES)
    for key in sorted(given.keys() & {"dataset", "preset"}):
        raise UserError(f"suite={suite} sets the {key}; remove {key}=")
    if "attention" not in given:
        raise UserError(f"suite={suite} requires an attention; run `cab run suite={suite} attention=NAME`")
    parts = {name: given[name] for name in PARTS if name in given}
    rest = [override for override in overrides if override.partition("=")[0] not in ("suite", "tune", *PARTS)]
    rest += [] if "seed" in given else ["seed=1,2,3"]
    return [[*cell_overrides(cell), *rest] for cell in _chosen(suite, parts)]


def cell_overrides(cell: SuiteCell) -> list[str]:
    """Return the overrides that select a cell and set its options."""
    groups = (*PARTS, "dataset")
    return [*(f"{name}={getattr(cell, name)}" for name in groups), f"preset={PRESET}", *cell.options.split()]


def _chosen(suite: str, parts: dict[str, str]) -> list[SuiteCell]:
    """Return the cells of a suite whose task, backbone and pattern are among the given ones."""
    cells = [cell for cell in suite_cells() if cell.core or suite != "core"]
    for part, text in parts.items():
        names = [LONG_NAMES.get(name, name) for name in text.split(",")]
        known = list(dict.fromkeys(getattr(cell, part) for cell in cells))
        for name in names:
            if name not in known:
                raise unknown_name(f"{part} of suite={suite}", name, known)
        cells = [cell for cell in cells if getattr(cell, part) in names]
    return cells
