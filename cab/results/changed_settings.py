"""Settings of a run that are not those of preset `paper`, or of the suite: its scores are not comparable."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.records.identity import flat, measured

if TYPE_CHECKING:
    import pandas as pd

    from cab.config.compose import Composer

CHANGED_MARK = "‡"
"""Marks an attention with such a run."""
GROUPS = ("task", "backbone", "trainer", "other_attention")
"""Groups of a configuration that compared runs must share; the options of the attention are in its name."""
PUBLISHED_VARIANTS = ("features",)
"""Options of tasks with several published values: univariate and multivariate series of LSTF."""


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in :data:`GROUPS` that can change a result."""
    groups = {"task": config["task"], "backbone": config["backbone"], "trainer": measured(config["trainer"])}
    return {**flat(groups), "other_attention": config.get("other_attention", "vanilla")}


def changes(
    config: Mapping[str, Any],
    changed_options: Collection[str],
    standard: Mapping[str, Any],
    required: Iterable[str] = (),
) -> list[str]:
    """Return the settings of a run that are not the standard ones, such as ``task.tokenizer=null``.

    An option that only one of them has differs if the run does not use its default, or does not have it although it is
    ``required``. A learning rate that was tuned may differ.
    """
    settings = {**dict.fromkeys(required), **settings_of(config)}
    changed = {name for name, value in standard.items() if settings.get(name, value) != value}
    changed |= {*changed_options} & settings.keys() - standard.keys()
    changed -= {"trainer.learning_rate"} if config.get("tuning") is not None else set()
    return sorted(f"{name}={'null' if settings[name] is None else settings[name]}" for name in changed)


def with_changed(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the column ``changed``: the settings of a run of preset `paper` that are not the published ones."""
    runs = frame[(frame["preset"] == "paper") & (frame["hash"] != "")].drop_duplicates("file")
    names = ["task", "dataset", "backbone", "pattern", "config", "changed_options"]
    rows = runs[names].itertuples(index=False, name=None)
    changed = [tuple(_changed_settings(cell, config, options)) for *cell, config, options in rows]
    of_file = dict(zip(runs["file"], changed, strict=True))
    return frame.assign(changed=[of_file.get(file, ()) for file in frame["file"]])


def _changed_settings(cell: Sequence[str], config: Mapping[str, Any], changed_options: Collection[str]) -> list[str]:
    """Return the settings of a run that differ from preset `paper`."""
    task = config["task"]
    variants = [f"task.{name}={task[name]}" for name in PUBLISHED_VARIANTS if name in task]
    overrides = [f"{key}={name}" for key, name in zip(("task", "dataset", "backbone", "pattern"), cell, strict=True)]
    changed: list[str] = []
    for attention in ("vanilla", config["attention"]["name"]):  # few settings depend on the attention
        try:
            published = _published(attention, *overrides, *variants)
        except UserError:  # a class in a file that is gone
            break
        changed = changes(config, changed_options, published)
        if not changed:
            break
    return changed


@functools.cache
def _published(attention: str, *overrides: str) -> dict[str, Any]:
    from cab.config.compose import written  # imports Hydra

    return settings_of(_composer()([f"attention={written(attention)}", *overrides, "preset=paper"]))


@functools.cache
def _composer() -> Composer:
    """Return a composer that composes cells once that differ only in the attention."""
    from cab.config.compose import Composer

    return Composer()
