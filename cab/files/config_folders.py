"""Where configurations lie: configs/, and the folders of other packages."""

from __future__ import annotations

import functools
import importlib.util
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

from cab.errors import UserError

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
def config_folders() -> tuple[Path, ...]:
    """configs/, then the folder of each package that an entry point of the group ``cab.configs`` names.

    Each is laid out as configs/: ``recipe/<task>/<preset>.yaml``, ``size/<backbone>/<preset>.yaml``,
    ``paper/<table>.csv``, ``costs.csv``, ``data/<data set>.yaml``. What is in two of them is taken from the first.
    """
    folders = [CONFIGS]
    for point in entry_points(group="cab.configs"):
        spec = importlib.util.find_spec(point.module)
        if spec is None or not spec.submodule_search_locations:
            raise UserError(f"entry point '{point.name}' of cab.configs: no package '{point.module}'")
        folders += map(Path, spec.submodule_search_locations)
    return tuple(folders)
