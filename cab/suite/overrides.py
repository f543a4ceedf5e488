"""Expansion of `cab run suite=mini`."""

from __future__ import annotations

from collections.abc import Sequence

from cab.errors import UserError
from cab.suite.cells import PRESET


def suite_overrides(overrides: Sequence[str]) -> list[str] | None:
    """Expand ``suite=mini`` among the overrides to a sweep; return None if it is not among them.

    Raises:
        ValueError: the suite does not exist, the overrides set data set or preset, or they lack an attention.
    """
    suites = [override for override in overrides if override.partition("=")[0] == "suite"]
    if not suites:
        return None
    if suites != [f"suite={PRESET}"]:
        raise UserError(f"unknown suite in '{' '.join(suites)}'; use suite={PRESET}")
    rest = [override for override in overrides if override not in suites]
    keys = {override.partition("=")[0] for override in rest}
    for key in sorted(keys & {"dataset", "preset"}):
        raise UserError(f"suite={PRESET} sets the {key}; remove {key}=")
    if "attention" not in keys:
        raise UserError(f"suite={PRESET} requires an attention; run `cab run suite={PRESET} attention=NAME`")
    seeds = [] if "seed" in keys else ["seed=1,2,3"]
    return [*rest, *seeds, "dataset=synthetic", f"preset={PRESET}"]
