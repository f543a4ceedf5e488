"""Compose the configuration of a cell with Hydra, from overrides whose names are checked first.

The groups task, dataset, backbone and attention are created from the registries. Presets read the paper's tables.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import hydra
import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from cab.config.run_config import KEYS, REGISTRIES, DataConfig, TrainerConfig
from cab.errors import UnsupportedError, UserError, first_line, unknown_name
from cab.files.config_folders import CONFIGS, config_folders
from cab.patterns import LONG_NAMES, Pattern
from cab.registry.options import annotations_of, check_names
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS, is_file, name_of_file
from cab.registry.tables import read_table, tuned_options

USUAL_CHOICES = {"trainer": "default", "logger": "csv", "cluster": "none"}
"""Default choices of the groups that are folders of configs/."""
PRESETS = ("paper", "mini", "smoke")


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the resolved configuration of a single cell.

    Raises:
        UserError: an override is invalid, a value is missing, or the preset has no file for the task.
    """
    overrides = check_overrides(overrides)
    with hydra_context():
        container = OmegaConf.to_container(hydra.compose("run", overrides=overrides), resolve=True)
    assert isinstance(container, dict)
    missing = sorted(_missing(container))
    if missing:
        raise UserError(f"no value for {', '.join(missing)}")
    check_preset(container["preset"], task=container["task"]["name"], backbone=container["backbone"]["name"])
    return {str(key): value for key, value in container.items()}


@contextlib.contextmanager
def hydra_context() -> Iterator[None]:
    """Use our groups, folders and resolvers in Hydra inside the block, and raise UserError for its errors."""
    OmegaConf.register_new_resolver("paper", paper_value, replace=True)
    OmegaConf.register_new_resolver("table5", _table5_value, replace=True)
    Plugins.instance().register(RegistrySource)
    Plugins.instance().register(ConfigFolders)
    try:
        with hydra.initialize_config_dir(config_dir=str(CONFIGS), version_base="1.3"):
            yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(first_line(error)) from error


class RegistrySource(ConfigSource):
    """The groups task, dataset, backbone and attention: a name and the constructor's options, with their defaults."""

    @staticmethod
    def scheme() -> str:
        return "registry"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") in ("", "dataset", *REGISTRIES)

    def is_config(self, config_path: str) -> bool:
        group, name = _split(config_path)
        return self.is_group(group) and name in _names(group)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        groups = ["dataset", *REGISTRIES] if config_path.strip("/") == "" else []
        names = _names(config_path.strip("/"))
        listed = {ObjectType.GROUP: groups, ObjectType.CONFIG: names, None: [*groups, *names]}
        return sorted(listed[results_filter])

    def load_config(self, config_path: str) -> ConfigResult:
        group, name = _split(config_path)
        options = REGISTRIES[group].get(name).options if group in REGISTRIES else {}
        if group == "attention":
            options = {option: f"${{table5:{name},{option}}}" for option in options}
        content = OmegaConf.create({"name": name, **options})
        return ConfigResult(self.provider, self.full_path(), content, {"package": None})


class ConfigFolders(SearchPathPlugin):
    """Puts the registries and other packages' folders behind configs/."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("registries", "registry://")
        for folder in config_folders()[1:]:
            search_path.append("cab.configs", f"file://{folder}")


def _split(config_path: str) -> tuple[str, str]:
    """Return group and name; an attention's name may be the path of a file."""
    group, _, name = config_path.removesuffix(".yaml").partition("/")
    return group, name


def _names(group: str) -> list[str]:
    if group == "dataset":
        return sorted({dataset for task in TASKS for dataset in task.datasets})
    return REGISTRIES[group].names() if group in REGISTRIES else []


def paper_value(table: str, column: str, *where: str) -> Any:
    """``${paper:TABLE,COLUMN,KEY,VALUE,...}``: one value of a table of configs/paper; empty cells are null.

    An empty key stands for every value that no row before it has.
    """
    cell = paper_row(table, *where)[column]
    return yaml.safe_load(cell) if cell else None


def paper_row(table: str, *where: str) -> dict[str, str]:
    """Return the row that contains such a value."""
    key_values = dict(zip(where[::2], where[1::2], strict=True))
    for row in read_table(table):
        if all(row[key] in (value, "") for key, value in key_values.items()):
            return row
    raise UserError(f"configs/paper/{table}.csv has no row with {', '.join(where)}")


def _table5_value(attention: str, option: str, *, _root_: DictConfig) -> Any:
    """``${table5:ATTENTION,OPTION}``: the option's value for the cell that is being composed."""
    cell = _root_.task.name, _root_.backbone.name, str(_root_.pattern), attention
    return tuned_options(*cell, preset=_root_.preset)[option]


def check_overrides(arguments: Iterable[str], *, sweep: bool = False) -> list[str]:
    """Check names before Hydra composes anything, and fill what has one possible value.

    Args:
        sweep: a group that is not named means all of it.

    Returns:
        The overrides, with the backbone of a task that has only one.

    Raises:
        ValueError: an unknown task, dataset, backbone, attention, pattern or preset, with the nearest name; or
            one that is missing, with the names to choose from.
    """
    arguments = [_quoted_file(_short_patterns(argument)) for argument in arguments]
    parsed = parse_overrides(arguments)
    for place, override in enumerate(parsed):
        _check_key(override)
        if override.is_sweep_override() and not sweep:
            raise UserError(f"'{arguments[place]:.80}' has several values; add -m to run them all: `cab run -m ...`")
        if override.key_or_group == "attention" and not override.is_sweep_override():
            arguments[place] = f"attention={quoted(name_of_file(str(override.value())))}"
    chosen: dict[str, list[str]] = {}
    for override in parsed:  # of a group that is named twice, both values are checked
        chosen.setdefault(override.key_or_group, []).extend(_choices(override))
    _check_names("task", chosen.get("task"), TASKS.names(), needed=not sweep)
    tasks = [TASKS.get(name) for name in chosen.get("task", TASKS.names())]
    datasets = sorted({name for task in tasks for name in task.datasets})
    backbones = sorted({name for task in tasks for name in task.backbones})
    if "backbone" not in chosen and len(backbones) == 1:
        chosen["backbone"] = backbones
        arguments.append(f"backbone={backbones[0]}")
    _check_names("dataset", chosen.get("dataset"), datasets, needed=not sweep)
    _check_names("backbone", chosen.get("backbone"), BACKBONES.names(), needed=not sweep)
    if "attention" in chosen:
        chosen["attention"] = [ATTENTIONS.get(name).name if is_file(name) else name for name in chosen["attention"]]
    _check_names("attention", chosen.get("attention"), ATTENTIONS.names(), needed=not sweep)
    _check_names("pattern", chosen.get("pattern"), [str(pattern) for pattern in Pattern], needed=not sweep)
    _check_names("preset", chosen.get("preset"), PRESETS, needed=False)
    for group, choices in _groups_with_files().items():
        _check_names(group, chosen.get(group), choices, needed=False)
    _check_options(chosen, parsed)
    return arguments


def parse_overrides(arguments: list[str]) -> list[Override]:
    """Parse overrides with Hydra's grammar; UserError for one that it cannot read."""
    parser, parsed = OverridesParser.create(), []
    for argument in arguments:
        try:
            parsed.append(parser.parse_override(argument))
        except (HydraException, RecursionError) as error:
            raise UserError(
                f"cannot read the override '{argument:.80}'; write KEY=VALUE, or attention.OPTION=VALUE for options; "
                "put a value with special characters in two pairs of quotes: `KEY=\"'VALUE'\"`"
            ) from error
    return parsed


def quoted(name: str) -> str:
    """Return the name as a value of an override, in quotes if it has characters of Hydra's grammar."""
    is_plain = re.fullmatch(r"[\w./:-]*", name, re.ASCII)
    return name if is_plain else QuotedString(text=name, quote=Quote.single).with_quotes()


def _quoted_file(argument: str) -> str:
    """Quote the value of ``attention=FILE.py:Class`` if the file exists, so that users need not quote a single name."""
    key, _, name = argument.partition("=")
    file, _, class_name = name.rpartition(":")
    is_one = key == "attention" and class_name.isidentifier() and os.path.isfile(file)  # noqa: PTH113
    return f"attention={quoted(name)}" if is_one else argument


def _short_patterns(argument: str) -> str:
    """Replace names of patterns in words, as in ``pattern=causal_self``, by the short ones."""
    key, equals, names = argument.partition("=")
    if key != "pattern":
        return argument
    return key + equals + ",".join(LONG_NAMES.get(name, name) for name in names.split(","))


def _check_key(override: Override) -> None:
    """UserError for a key that no run has, and for one that is taken away."""
    if override.is_delete():
        raise UserError(f"'{override.input_line}' removes an option; leave it out, and it has its usual value")
    group, _, option = override.key_or_group.replace("/", ".").partition(".")
    if group not in KEYS:
        raise unknown_name("option", group, KEYS)
    groups = {config.group: annotations_of(config) for config in (TrainerConfig, DataConfig)}
    if group in groups and option:
        check_names([option.partition(".")[0]], groups[group], group)
    if group == "data" and not option:
        raise UserError(f"data is a group of options: set {' or '.join(f'data.{name}' for name in groups['data'])}")


def _check_names(kind: str, names: list[str] | None, known: Iterable[str], *, needed: bool) -> None:
    if not names and needed:
        article = "an" if kind[0] in "aeiou" else "a"
        raise UserError(f"name {article} {kind}: {kind}=NAME, one of {', '.join(known)}")
    for name in names or ():
        if name not in known:
            raise unknown_name(kind, name, known)


def _check_options(chosen: Mapping[str, list[str]], parsed: list[Override]) -> None:
    """Raise UserError unless an option like ``attention.num_landmarks`` exists in one of the named attentions."""
    for override in parsed:
        group, _, option = override.key_or_group.partition(".")
        if option and group in REGISTRIES:
            registry = REGISTRIES[group]
            entries = [registry.get(name) for name in chosen[group]] if group in chosen else registry.load()
            if not any(option.partition(".")[0] in entry.options for entry in entries):
                entries[0].check_options({option: None}, group)
        elif option and group in _groups_with_files():
            _check_choice_has(option.partition(".")[0], group, chosen.get(group, [USUAL_CHOICES[group]]))


def _check_choice_has(option: str, group: str, names: Iterable[str]) -> None:
    """Raise UserError unless one of the named choices of a group such as ``cluster`` has the option."""
    choices = _groups_with_files()[group]
    if any(option in choices[name] for name in names):
        return
    owners = [name for name, options in choices.items() if option in options]
    if owners:
        raise UserError(f"{group}.{option} requires {' or '.join(f'{group}={name}' for name in owners)}")
    check_names([option], dict.fromkeys(each for options in choices.values() for each in options), group)


@functools.cache
def _groups_with_files() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Return the choices of the groups that are folders of configs/, each with its options."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for group in USUAL_CHOICES:
        files = [path for folder in config_folders() for path in sorted((folder / group).glob("*.yaml"))]
        contents = {path.stem: yaml.safe_load(path.read_text()) for path in files}
        found[group] = {name: tuple(key for key in content if key != "name") for name, content in contents.items()}
    return found


def _choices(override: Override) -> list[str]:
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return [text_of(item) for item in value.list]
    return [str(value)]


def text_of(value: Any) -> str:
    """Return a value of a list in an override as text."""
    return value.text if isinstance(value, QuotedString) else str(value)


def _missing(value: Any, name: str = "") -> Iterator[str]:
    """Yield the keys without a value."""
    if value == "???":
        yield name
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        yield from _missing(inner, f"{name}.{key}" if name else str(key))


def check_preset(preset: str, *, task: str, backbone: str) -> None:
    """Unsupported, naming the file that is missing, when the task has no recipe or the backbone no size for it.

    The published sizes are the constructor's defaults: ``paper`` needs no file of a size.
    """
    for path in (f"recipe/{task}/{preset}.yaml", *([f"size/{backbone}/{preset}.yaml"] if preset != "paper" else [])):
        if not any((folder / path).is_file() for folder in config_folders()):
            raise UnsupportedError(
                f"preset '{preset}' needs {path}, which is neither in configs/ nor in a package that an entry point "
                "of cab.configs names"
            )
