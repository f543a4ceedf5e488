"""Settings in files, as overrides: what ``cab run --cfg job`` prints, and experiments in a folder of configurations."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cab.config.compose import quoted
from cab.errors import UserError, first_line, unknown_name
from cab.registry.tables import config_folders


@contextlib.contextmanager
def mistakes_with_files(overrides: Sequence[str], file: Path | None) -> Iterator[None]:
    """Put the file before the message of a mistake in an option that a file of the user sets, not an override."""
    try:
        yield
    except UserError as error:
        given = {override.lstrip("+").partition("=")[0] for override in overrides}
        for path in [*([file] if file else []), *_chosen_files(overrides)]:
            for key in _keys(path) - given:
                # The option begins the message, or is in quotes, or is named after the choice of its group.
                group, _, name = map(re.escape, key.partition("."))
                if re.search(rf"^{re.escape(key)}: |'{re.escape(key)}'|^{group} .*no option '{name}'", str(error)):
                    raise type(error)(f"{path}: {error}") from error
        raise


def _chosen_files(overrides: Sequence[str]) -> Iterator[Path]:
    """Yield the presets, recipes, sizes and experiments of the user that have a name in the overrides."""
    names = {override.partition("=")[2] for override in overrides}
    for folder in config_folders()[1:]:
        for group in ("experiment", "preset", "recipe", "size", "data_recipe"):
            yield from (path for path in sorted((folder / group).rglob("*.yaml")) if path.stem in names)


def _keys(path: Path) -> set[str]:
    """Return the options that a file sets; none of a file that cannot be read."""
    with contextlib.suppress(UserError):
        return {override.partition("=")[0] for override in _overrides(path)}
    return set()


def is_experiment(override: str) -> bool:
    """Return whether an override chooses an experiment; Hydra's users write ``+experiment=NAME``."""
    return override.lstrip("+").startswith("experiment=")


def with_files(overrides: Sequence[str], file: Path | None) -> list[str]:
    """Return the overrides behind those of a file and of ``experiment=NAME``, which they replace.

    An override of a group, such as ``attention=abc``, also replaces the options of its earlier choice.
    """
    names = [override.partition("=")[2] for override in overrides if is_experiment(override)]
    layers = [list(_overrides(path)) for path in ([file] if file else []) + [_experiment(name) for name in names]]
    layers.append([override for override in overrides if not is_experiment(override)])
    merged: dict[str, str] = {}
    for layer in layers:
        keys = [override.partition("=")[0].lstrip("+") for override in layer]
        chosen = tuple(f"{key}." for key in keys if "." not in key)
        merged = {key: text for key, text in merged.items() if key not in keys and not key.startswith(chosen)}
        merged |= dict(zip(keys, layer, strict=True))
    return list(merged.values())


def _experiment(name: str) -> Path:
    """Return the file of an experiment."""
    files = {path.stem: path for folder in reversed(config_folders()) for path in folder.glob("experiment/*.yaml")}
    if name not in files:
        hint = "" if files else "; put experiment/NAME.yaml into a folder and name it with --config-dir"
        raise UserError(f"{unknown_name('experiment', name, files)}{hint}")
    return files[name]


def _overrides(path: Path) -> Iterator[str]:
    """Yield the settings of a YAML file as overrides; those of its defaults list choose the groups."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read as YAML: {first_line(error)}") from error
    if not isinstance(content, Mapping):
        raise UserError(f"{path} has no settings; expected the output of `cab run ... --cfg job`, or KEY: VALUE")
    for choice in content.get("defaults") or ():
        for group, name in choice.items() if isinstance(choice, Mapping) else ():
            yield f"{group.removeprefix('override ').lstrip('/')}={quoted(str(name))}"
    yield from _settings({key: value for key, value in content.items() if key != "defaults"})


def _settings(content: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in content.items():
        name = f"{prefix}{key}"
        if not isinstance(value, Mapping) or not value:
            yield f"{name}={value_text(value)}"
            continue
        if "name" in value:
            yield f"{name}={value_text(value['name'])}"
        yield from _settings({option: each for option, each in value.items() if option != "name"}, f"{name}.")


def value_text(value: Any) -> str:
    """Return a value in the grammar of Hydra's overrides."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{value_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(value_text, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return quoted(value) if isinstance(value, str) else repr(value)
