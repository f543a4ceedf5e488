"""Source of each setting of a cell: a default, the file of a preset, a table of the paper, or the command line."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from cab.config.compose import paper_row, register_configs, resolve
from cab.config.sources import REGISTRIES
from cab.files.config_folders import CONFIGS
from cab.registry.tables import tuning_rows
from cab.runner.cell import Cell
from cab.runner.engine import check_without_data
from cab.runner.launch import readable_errors

ROOT = CONFIGS.parent
CHANGING = ("preset/", "size/", "recipe/", "data_recipe/")
"""Files that override defaults; all other files define them."""
NAMED = ("task", "dataset", "backbone", "attention")
COMMAND_LINE = "command line"
ONLY = "the only one of the task"
MISSING = "???"


class Setting(NamedTuple):
    """A setting of a cell.

    Attributes:
        name: key of the setting.
        value: its value.
        default: its default; ``???`` if it has none.
        source: source of the value.
    """

    name: str
    value: Any
    default: Any
    source: str

    @property
    def is_default(self) -> bool:
        """Whether the value is the default."""
        return bool(self.value == self.default)

    @property
    def texts(self) -> tuple[str, str]:
        """The value as written on the command line, and the default if it is different."""
        return _text(self.value), "" if self.is_default or self.default == MISSING else _text(self.default)


@dataclass(frozen=True)
class _Layer:
    """A composed file, or the options of a registered class, with its values by the names of their settings."""

    path: str
    values: Mapping[str, Any]
    file: Path | None

    @property
    def holds_defaults(self) -> bool:
        return not self.path.startswith(CHANGING)

    def where(self, name: str) -> str:
        """Return the file and line of a setting, or the module of the class."""
        if self.file is None:
            group, _, registered = self.path.partition("/")
            return str(REGISTRIES[group].get(registered).cls.__module__)
        lines = _lines_of(self.file)
        own = name.partition(".")[2] if self.path.partition("/")[0] == name.partition(".")[0] else name
        shown = self.file.relative_to(ROOT) if self.file.is_relative_to(ROOT) else self.file
        return f"{shown}:{lines[own]}" if own in lines else str(shown)


def explain(overrides: Sequence[str], *, added: Sequence[str] = ()) -> list[Setting]:
    """Return the settings of one cell, in the order of its configuration.

    Args:
        overrides: overrides of the cell.
        added: overrides that were added because there was only one choice.

    Raises:
        UserError: a run with these settings would be refused.
    """
    register_configs()
    with initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"), readable_errors():
        config = compose("run", overrides=list(overrides))
        loader = GlobalHydra.instance().config_loader()
        assert isinstance(loader, ConfigLoaderImpl)
        chosen = loader.compute_defaults_list("run", list(overrides), RunMode.RUN)
        check_without_data(Cell.from_config(resolve(config)))
        layers = [_layer(loader, each.config_path, each.package) for each in chosen.defaults if each.config_path]
        typed = [re.split(r"[=@]", text.lstrip("+"), maxsplit=1)[0] for text in overrides]
        sources = {key: COMMAND_LINE if text not in added else ONLY for key, text in zip(typed, overrides, strict=True)}
        return [_setting(name, value, config, layers, sources) for name, value in _leaves(resolve(config), "")]


def _layer(loader: ConfigLoaderImpl, path: str, package: str | None) -> _Layer:
    result = loader.repository.load_config(path)
    assert result is not None
    content = OmegaConf.to_container(result.config, resolve=False)
    prefix = f"{package}." if package not in (None, "", "_global_") else ""
    scheme, _, folder = result.path.partition("://")
    file = Path(folder) / f"{path}.yaml" if scheme == "file" else None
    return _Layer(path, dict(_leaves(content, prefix)), file)


def _setting(name: str, value: Any, config: DictConfig, layers: Sequence[_Layer], typed: Mapping[str, str]) -> Setting:
    group = name.removesuffix(".name")
    if group in _usual_groups() and name in (group, f"{group}.name"):
        usual = _usual_groups()[group]
        return Setting(name, value, usual, typed.get(group, f"default of configs/run.yaml, defaults: {group}"))
    if group in NAMED and name == f"{group}.name":
        return Setting(name, value, MISSING, typed.get(group, COMMAND_LINE))
    holders = [layer for layer in layers if _of(layer, name)]
    defaults = [layer for layer in holders if layer.holds_defaults]
    default = _usual(name, value, config, defaults[-1]) if defaults else MISSING
    by_hand = [source for key, source in typed.items() if key == name or _is_part(name, key)]
    return Setting(name, value, default, by_hand[-1] if by_hand else _source(name, config, holders[-1]))


def _is_part(name: str, key: str) -> bool:
    """Return whether ``key=...`` sets ``name`` as part of a mapping; selecting a group does not set its options."""
    return name.startswith(f"{key}.") and key not in (*NAMED, *_usual_groups())


@functools.cache
def _usual_groups() -> dict[str, str]:
    """Return the groups with a default choice in configs/run.yaml, with this choice."""
    listed = yaml.safe_load((CONFIGS / "run.yaml").read_text())["defaults"]
    chosen = {key: value for each in listed if isinstance(each, dict) for key, value in each.items()}
    return {key: value for key, value in chosen.items() if key.isidentifier() and value != MISSING}


def _of(layer: _Layer, name: str) -> tuple[Any, ...]:
    """Return the value of a setting in a layer, or of the mapping that contains it; empty if the layer has neither."""
    while name:
        if name in layer.values:
            return (layer.values[name],)
        name = name.rpartition(".")[0]
    return ()


def _usual(name: str, value: Any, config: DictConfig, layer: _Layer) -> Any:
    """Return the default of a setting: the layer's value, or an attention option's default without the tables."""
    [raw] = _of(layer, name)
    if name not in layer.values and not name.endswith(".name"):
        return MISSING
    if not _is_interpolation(raw):
        return raw
    if "${table5:" in raw:
        return REGISTRIES["attention"].get(config.attention.name).options[name.removeprefix("attention.")]
    return value


def _source(name: str, config: DictConfig, layer: _Layer) -> str:
    raw = str(_of(layer, name)[0])
    place = layer.where(name)
    if "${table5:" in raw:
        cell = config.task.name, config.backbone.name, str(config.pattern), config.attention.name
        rows = [
            each for each in tuning_rows(*cell, preset=config.preset) if each[1]["option"] == name.rpartition(".")[2]
        ]
        if not rows:
            return f"default of {place}"
        file, row = rows[-1]
        return _describe_row(file, row, ("task", "backbone", "pattern", "attention"))
    tables = re.search(r"\$\{paper:(.*)\}", raw)
    if tables is not None:
        return f"{_paper_source(name, config)}; by {place}"
    environment = re.search(r"\$\{oc\.env:(\w+)", raw)
    if environment is not None:
        return f"environment variable {environment[1]}" if environment[1] in os.environ else f"default of {place}"
    return f"default of {place}" if layer.holds_defaults else place


def _paper_source(name: str, config: DictConfig) -> str:
    """Return the row of the paper's table from which the file of a preset takes a value."""
    OmegaConf.register_new_resolver("paper_row", _described_row, replace=True)
    raw = OmegaConf.to_container(config, resolve=False)
    assert isinstance(raw, dict)
    cell: Any = raw
    for key in name.split("."):
        cell = cell[key]
    first = cell[0] if isinstance(cell, list) else cell
    described = {"described": first.replace("${paper:", "${paper_row:")}
    return str(OmegaConf.create({**raw, **described}).described)


def _described_row(table: str, column: str, *where: str) -> str:
    row = paper_row(table, *where)
    return _describe_row(f"paper/{table}.csv", row, where[::2], column)


def _describe_row(file: str, row: Mapping[str, str], keys: Sequence[str], column: str = "") -> str:
    """Return a text such as ``configs/paper/table4.csv, task=lstf, column batch_size``, with the row's note."""
    of = " ".join(f"{key}={row[key]}" for key in keys if row.get(key))
    note = row.get("source") or row.get("note") or ""
    return f"configs/{file}, {of}" + (f", column {column}" if column else "") + (f" ({note})" if note else "")


def _is_interpolation(raw: Any) -> bool:
    return isinstance(raw, str) and "${" in raw


def _leaves(content: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@functools.cache
def _lines_of(file: Path) -> dict[str, int]:
    return dict(_lines(yaml.compose(file.read_text()), ""))


def _lines(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the line of every key of a YAML file."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield f"{prefix}{key.value}", key.start_mark.line + 1
            yield from _lines(value, f"{prefix}{key.value}.")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
