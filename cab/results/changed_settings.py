"""Settings of a run that are not those of preset `paper`, or of the suite: its scores are not comparable."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from cab.errors import UserError
from cab.records.identity import flat, measured
from cab.records.record import Record

CHANGED_MARK = "‡"
"""Marks an attention with such a run."""
PUBLISHED_VARIANTS = ("features",)
"""Options of tasks with several published values: univariate and multivariate series of LSTF."""


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that compared runs must share; the options of the attention are in its name."""
    groups = {"task": config["task"], "backbone": config["backbone"], "trainer": measured(config["trainer"])}
    return {**flat(groups), "other_attention": config.get("other_attention", "vanilla")}


def changes(record: Record, standard: Mapping[str, Any], required: Iterable[str] = ()) -> list[str]:
    """Return the settings of a run that are not the standard ones, such as ``task.tokenizer=null``.

    An option that only one of them has differs if the run does not use its default, or does not have it although it is
    ``required``. A learning rate that was tuned may differ.
    """
    settings = {**dict.fromkeys(required), **settings_of(record.config)}
    changed = {name for name, value in standard.items() if settings.get(name, value) != value}
    changed |= record.changed.keys() & settings.keys() - standard.keys()
    changed -= {"trainer.learning_rate"} if record.config.get("tuning") is not None else set()
    return sorted(f"{name}={'null' if settings[name] is None else settings[name]}" for name in changed)


def changed_settings(record: Record) -> list[str]:
    """Return the settings that differ from preset `paper`; empty for other presets."""
    if record.cell["preset"] != "paper":
        return []
    settings, changed = settings_of(record.config), []
    variants = [f"task.{name}={settings[f'task.{name}']}" for name in PUBLISHED_VARIANTS if f"task.{name}" in settings]
    cell = [f"{key}={record.cell[key]}" for key in ("task", "dataset", "backbone", "pattern")]
    for attention in ("vanilla", record.config["attention"]["name"]):  # few settings depend on the attention
        try:
            published = _published(attention, *cell, *variants)
        except UserError:  # a class in a file that is gone
            break
        changed = changes(record, published)
        if not changed:
            break
    return changed


@functools.cache
def _published(attention: str, *overrides: str) -> dict[str, Any]:
    from cab.config.compose import compose, written  # import Hydra

    return settings_of(compose([f"attention={written(attention)}", *overrides, "preset=paper"]))
