"""Folders of configurations and their tables: published values, and the options of attentions per cell."""

from __future__ import annotations

import csv
import functools
import importlib.util
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

from cab.errors import UserError
from cab.files.disk import user_path
from cab.registry.registries import ATTENTIONS, TASKS
from cab.registry.stacks import StackEntry
from cab.spec import Spec

PRESETS = ("paper", "mini", "smoke")
"""Presets of configs/, the largest first."""
ADDED = "CAB_CONFIGS"
"""Environment variable with a folder of configurations, which `cab run --config-dir` sets."""
CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@functools.cache
def run_defaults() -> dict[str, Any]:
    """Return the literal defaults of configs/run.yaml, by key: no groups, interpolations or missing values."""
    options = yaml.safe_load((CONFIGS / "run.yaml").read_text())
    return {
        name: value
        for name, value in options.items()
        if name != "defaults" and not isinstance(value, dict) and not (isinstance(value, str) and value[0] in "$?")
    }


@functools.cache
def trainer_defaults() -> dict[str, Any]:
    """Return the defaults of the trainer's options, from configs/trainer/default.yaml."""
    options: dict[str, Any] = yaml.safe_load((CONFIGS / "trainer" / "default.yaml").read_text())
    return options


def presets() -> list[str]:
    """Return the names of all presets: those of configs/, then others."""
    files = [path for folder in config_folders() for path in sorted((folder / "preset").glob("*.yaml"))]
    return list(dict.fromkeys([*PRESETS, *(path.stem for path in files)]))


@functools.cache
def config_folders() -> tuple[Path, ...]:
    """configs/, the folder that the user added, and those of packages named by entry points of ``cab.configs``.

    Each is laid out as configs/: ``preset/<preset>.yaml``, ``recipe/<task>/<preset>.yaml``,
    ``size/<backbone>/<preset>.yaml``, ``experiment/<name>.yaml``, ``paper/<table>.csv``, ``costs.csv``,
    ``data/<data set>.yaml``. A YAML file in two of them is taken from the first; the rows of a table are those of all.
    """
    folders = [CONFIGS]
    if added := os.environ.get(ADDED):
        folders.append(user_path(added).absolute())
        if not folders[-1].is_dir():
            raise UserError(f"the folder of configurations {added} does not exist")
    for point in entry_points(group="cab.configs"):
        spec = importlib.util.find_spec(point.module)
        if spec is None or not spec.submodule_search_locations:
            raise UserError(f"entry point '{point.name}' of cab.configs: no package '{point.module}'")
        folders += map(Path, spec.submodule_search_locations)
    return tuple(folders)


def read_table(name: str) -> tuple[dict[str, str], ...]:
    """Read a table of configs/paper, followed by the rows that other packages add (:func:`config_folders`)."""
    return read_rows(f"paper/{name}.csv")


@functools.cache
def read_rows(path: str) -> tuple[dict[str, str], ...]:
    """Read the rows of a CSV file from every folder of configurations that has it."""
    rows: list[dict[str, str]] = []
    for folder in config_folders():
        if (folder / path).exists():
            with (folder / path).open(newline="") as file:
                rows += csv.DictReader(file)
    return tuple(rows)


def tuned_options(task: str, backbone: str, pattern: str, attention: str, *, preset: str = "paper") -> dict[str, Any]:
    """Return the options of an attention in a cell: Table 5 if it has a row, else the constructor's defaults.

    In preset mini, whose sequences are short, configs/suite/options.csv has the last word: windows, landmarks,
    features and states of about the published share. The options of a stack are those of its parts.
    """
    entry = ATTENTIONS.get(attention)
    if isinstance(entry, StackEntry):
        parts = ((name, entry.parts[name].name) for name in entry.options)
        return {name: tuned_options(task, backbone, pattern, part, preset=preset) for name, part in parts}
    options = dict(entry.options)
    for _, row in tuning_rows(task, backbone, pattern, attention, preset=preset):
        if row["option"] in options:
            options[row["option"]] = yaml.safe_load(row["value"])
    return options


def tuning_rows(
    task: str, backbone: str, pattern: str, attention: str, *, preset: str
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows that set options of an attention in a cell, with their file; later rows override earlier ones."""
    task = TASKS.get(task).options_from_task if task in TASKS else task
    for row in reversed(read_table("table5")):  # the first row, ours, has the last word
        applies = (row["task"], row["pattern"], row["attention"]) == (task, pattern, attention)
        if applies and row["backbone"] in ("", backbone):
            yield "paper/table5.csv", row
    for row in read_rows("suite/options.csv") if preset == "mini" else ():
        if row["task"] in ("", task) and row["pattern"] in ("", pattern) and row["attention"] == attention:
            yield "suite/options.csv", row


def attention_label(config: Mapping[str, Any]) -> str:
    """Return the name of an attention in tables, with its options in a configuration that differ from its cell's."""
    attention, place = Spec.of(config["attention"]), (config["task"]["name"], config["backbone"]["name"])
    usual = tuned_options(*place, config["pattern"], attention.name, preset=config["preset"])
    shown = list(_differing(attention.options, usual))
    shown += [] if config.get("tuning") is None else ["tuned"]
    return ATTENTIONS.get(attention.name).label + (f"({', '.join(shown)})" if shown else "")


def _differing(options: Mapping[str, Any], usual: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the options that differ, such as ``window_size=16``, or ``local.window_size=16`` of a stack."""
    for name, value in sorted(options.items()):
        known = usual.get(name)  # a mapping can be an option itself, whose default has other names or is None
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            yield from _differing(value, known, f"{prefix}{name}.")
        elif value != known:
            yield f"{prefix}{name}={value}"
