"""What `cab run suite=mini` stands for."""

from __future__ import annotations

from collections.abc import Sequence

from cab.errors import UserError
from cab.suite.cells import DATASET, PRESET


def suite_overrides(overrides: Sequence[str]) -> list[str] | None:
    """The sweep that ``suite=mini`` among the overrides stands for; None where it is not among them.

    Raises:
        ValueError: a suite that does not exist, a data set or preset of another, or no attention.
    """
    suites = [override for override in overrides if override.partition("=")[0] == "suite"]
    if not suites:
        return None
    if suites != [f"suite={PRESET}"]:
        raise UserError(f"the suite is {PRESET}: suite={PRESET}, not {' '.join(suites)}")
    rest = [override for override in overrides if override not in suites]
    keys = {override.partition("=")[0] for override in rest}
    for key in sorted(keys & {"dataset", "preset"}):
        raise UserError(f"suite={PRESET} chooses the {key}: leave out {key}=")
    if "attention" not in keys:
        raise UserError(f"name an attention: cab run suite={PRESET} attention=NAME")
    seeds = [] if "seed" in keys else ["seed=1,2,3"]
    return [*rest, *seeds, f"dataset={DATASET}", f"preset={PRESET}"]
