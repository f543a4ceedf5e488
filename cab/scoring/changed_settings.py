"""Settings of a run of preset `paper` that are not the published ones: its scores are not on the scale of the paper."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from cab.errors import UserError
from cab.records.identity import measured
from cab.records.record import Record

CHANGED_MARK = "‡"
"""Marks an attention with such a run."""
PUBLISHED_VARIANTS = ("features",)
"""Options of tasks with several published values: univariate and multivariate series of LSTF."""


def changed_settings(record: Record) -> list[str]:
    """Return the settings that differ from preset `paper`, such as ``task.tokenizer=null``; empty for other presets.

    Options that the record does not have are newer than it. Those of the attention are in its name.
    """
    if record.cell["preset"] != "paper":
        return []
    actual, changed = _settings(record.config), []
    variants = tuple(f"task.{name}={actual[f'task.{name}']}" for name in PUBLISHED_VARIANTS if f"task.{name}" in actual)
    cell = tuple(f"{key}={record.cell[key]}" for key in ("task", "dataset", "backbone", "pattern"))
    for attention in ("vanilla", record.config["attention"]["name"]):  # few settings depend on the attention
        try:
            published = _published(*cell, f"attention={attention}", *variants)
        except UserError:  # a class in a file that is gone
            break
        changed = [name for name in published if published[name] != actual.get(name, published[name])]
        if not changed:
            break
    return sorted(f"{name}={'null' if actual[name] is None else actual[name]}" for name in changed)


@functools.cache
def _published(*overrides: str) -> dict[str, Any]:
    from cab.config.compose import compose  # imports Hydra

    return _settings(compose([*overrides, "preset=paper"]))


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    groups = {"task": config["task"], "backbone": config["backbone"], "trainer": measured(config["trainer"])}
    settings = {f"{group}.{name}": value for group, options in groups.items() for name, value in options.items()}
    return {**settings, "other_attention": config.get("other_attention")}
