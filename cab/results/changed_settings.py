"""Settings of a run that are not those of preset `paper`, or of the suite: its scores are not comparable."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cab.errors import UserError
from cab.files.cache import prepared
from cab.records.identity import assignments, configured, differing, flat, measured
from cab.registry.program import code_of_location, joined
from cab.registry.registries import BACKBONES, TASKS
from cab.registry.tables import config_folders

if TYPE_CHECKING:
    import pandas as pd

    from cab.config.compose import Composer

CHANGED_MARK = "‡"
"""Marks an attention with such a run."""
COMPARED = ("task", "backbone", "trainer", "other_attention")
"""Groups of a configuration that compared runs must share; the options of the attention are in its name."""
PUBLISHED_VARIANTS = ("features",)
"""Options of tasks with several published values: univariate and multivariate series of LSTF."""


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in :data:`COMPARED` that can change a result."""
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
    tuned = {"trainer.learning_rate"} if config.get("tuning") is not None else set()
    names = differing([(settings, changed_options), (standard, ())])
    return assignments([name for name in names if name not in tuned], settings)


def with_changed(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the column ``changed``: the settings of a run of preset `paper` that are not the published ones."""
    runs = frame[(frame["preset"] == "paper") & (frame["hash"] != "")].drop_duplicates("file")
    names = ["task", "dataset", "backbone", "pattern", "config", "changed_options"]
    of_settings: dict[str, tuple[str, ...]] = {}  # seeds share their settings
    of_file: dict[str, tuple[str, ...]] = {}
    rows: Any = zip(runs["file"], runs[names].itertuples(index=False, name=None), strict=True)
    for file, (*cell, recorded, options) in rows:
        config = configured(recorded, options)
        key = json.dumps([cell, config["attention"], config.get("tuning"), [config.get(name) for name in COMPARED]])
        if key not in of_settings:
            of_settings[key] = tuple(_changed_settings(cell, config, options))
        of_file[file] = of_settings[key]
    changed: list[Any] = [of_file.get(file, ()) for file in frame["file"]]
    return frame.assign(changed=changed)


def _changed_settings(cell: Sequence[str], config: Mapping[str, Any], changed_options: Collection[str]) -> list[str]:
    """Return the settings of a run that differ from preset `paper`."""
    task = config["task"]
    variants = [f"task.{name}={task[name]}" for name in PUBLISHED_VARIANTS if name in task]
    changed: list[str] = []
    for attention in ("vanilla", config["attention"]["name"]):  # few settings depend on the attention
        try:
            published = _published(attention, *cell[:3], f"pattern={cell[3]}", *variants)
        except UserError:  # a class in a file that is gone
            break
        changed = changes(config, changed_options, published)
        if not changed:
            break
    return changed


@functools.cache
def _published(attention: str, task: str, dataset: str, backbone: str, *others: str) -> dict[str, Any]:
    """Return the settings of preset `paper`, composed once per state of the configurations and classes."""
    overrides = [f"task={task}", f"dataset={dataset}", f"backbone={backbone}", *others, "preset=paper"]
    locations = [TASKS.get(task).location, BACKBONES.get(backbone).location]
    codes = [code_of_location(location.module, location.qualname) for location in locations if location.file]

    def build(folder: Path) -> None:
        from cab.config.compose import written  # imports Hydra

        settings = settings_of(_composer()([f"attention={written(attention)}", *overrides]))
        (folder / "settings.json").write_text(json.dumps(settings))

    key = {"attention": attention, "overrides": overrides, "configurations": _configurations(), "codes": codes}
    settings: dict[str, Any] = json.loads((prepared("preset-paper", key, build) / "settings.json").read_text())
    return settings


@functools.cache
def _composer() -> Composer:
    """Return what composes preset `paper`; Hydra reads the files once for all attentions of a cell."""
    from cab.config.compose import Composer  # imports Hydra

    return Composer()


@functools.cache
def _configurations() -> str:
    """Return a digest of path, size and time of every file with configurations."""
    files = sorted(path for folder in config_folders() for path in folder.rglob("*") if path.is_file())
    return joined(f"{path} {(about := path.stat()).st_size} {about.st_mtime_ns}" for path in files)
