"""Compose the configuration of a cell with Hydra, from overrides whose names are checked first.

The groups and resolvers are in :mod:`cab.config.groups`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import hydra
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, Quote, QuotedString
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from cab.config.groups import attention_options, names_of_group
from cab.config.hydra_options import refusal, replacement
from cab.config.run_config import REGISTRIES, RUN_KEYS, DataConfig
from cab.errors import UnsupportedError, UserError, unknown_name
from cab.patterns import LONG_NAMES, Pattern
from cab.registry.names import is_file, is_own_name, is_stack, name_of_file, unknown_class
from cab.registry.options import annotations_of, check_names
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS
from cab.registry.tables import config_folders, presets, tuned_options

USUAL_CHOICES = {"trainer": "default", "logger": "csv", "cluster": "none"}
"""Default choices of the groups that are folders of configs/."""
REQUIRED_GROUPS = ("task", "dataset", "backbone", "attention", "pattern")
"""Groups that a single run names."""
FILE_GROUPS = frozenset({*REQUIRED_GROUPS, *USUAL_CHOICES, "preset", "experiment"} - {"pattern"})
"""Groups whose choices are files or registered classes; other keys are values."""


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the resolved configuration of a cell; UserError for an invalid override, or a missing value or file."""
    return Composer()(overrides)


class Composer:
    """Compose cells like :func:`compose`; Hydra composes the files once per choice of groups, as most cells share them.

    Seeds share the resolved values as well, and so do attentions to which no other value refers. Do not
    change a returned configuration.
    """

    def __init__(self) -> None:
        self._composed: dict[tuple[str, ...], DictConfig] = {}
        self._resolved: dict[tuple[str, ...], dict[str, Any]] = {}

    def __call__(self, overrides: Sequence[str]) -> dict[str, Any]:
        overrides = check_overrides(overrides)
        named = [(override.partition("=")[0], override) for override in overrides]
        has_options = any(name.lstrip("+").startswith("attention.") for name, _ in named)
        refers = any("${" in override for name, override in named if name in ("seed", "attention"))
        # Cells that differ in these alone may share their other resolved values; most differ in both.
        variables = [] if refers else [("seed",)] if has_options else [("seed", "attention"), ("seed",)]
        keys = {
            varying: tuple(name if name in varying else override for name, override in named) for varying in variables
        }
        for varying, key in keys.items():
            if key in self._resolved:
                return _varied(self._resolved[key], [override for name, override in named if name in varying])
        with hydra_errors():
            composed = self._with_values(overrides)
            plain: Any = OmegaConf.to_container(composed, resolve=False)
            try:
                resolved: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
            except MissingMandatoryValue:
                missing = sorted(OmegaConf.missing_keys(composed))
                raise UserError(f"no value for {', '.join(missing)}") from None
        config = {str(name): value for name, value in resolved.items()}
        check_preset(config["preset"], task=config["task"]["name"], backbone=config["backbone"]["name"])
        options = attention_options(config["attention"]["name"])  # what no file changes
        for varying, key in keys.items():
            others = str({name: value for name, value in plain.items() if name not in varying})
            refers = re.search(rf"\$\{{[^{{}}]*\b({'|'.join(varying)})\b", others) is not None
            if not refers and (plain["attention"] == options or "attention" not in varying):
                self._resolved[key] = config
                break
        return config

    def _with_values(self, overrides: Sequence[str]) -> DictConfig:
        """Return the unresolved configuration: the files of the groups, then all other values, as Hydra sets them."""
        parsed = parse_overrides(list(overrides))
        of_files = [override for override in parsed if override.key_or_group in FILE_GROUPS]
        key = tuple("" if one.key_or_group == "attention" else str(one.input_line) for one in of_files)
        [name] = next(names_of(one) for one in of_files[::-1] if one.key_or_group == "attention")
        options = attention_options(name)
        if key not in self._composed:
            composed = hydra_composed([str(one.input_line) for one in of_files])
            if OmegaConf.to_container(composed.attention, resolve=False) != options:  # a file has set some of them
                return hydra_composed(overrides)
            self._composed[key] = composed
        config = copy.deepcopy(self._composed[key])
        OmegaConf.update(config, "attention", options, merge=False)
        values = [one for one in parsed if one.key_or_group not in FILE_GROUPS]
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
        return config


def _varied(config: Mapping[str, Any], overrides: list[str]) -> dict[str, Any]:
    """Return a resolved configuration with another seed and attention."""
    varied = dict(config)
    for override in parse_overrides(overrides):
        group, [name] = override.key_or_group, names_of(override)
        if group == "attention":
            place = (*(config[group]["name"] for group in ("task", "backbone")), config["pattern"], name)
            varied[group] = {"name": name, **tuned_options(*place, preset=config["preset"])}
        else:
            varied[group] = override.value()
    return varied


def hydra_composed(overrides: Sequence[str]) -> DictConfig:
    """Return the unresolved configuration of a cell as Hydra composes it."""
    with hydra_context():
        return hydra.compose("run", overrides=list(overrides))


@contextlib.contextmanager
def hydra_context() -> Iterator[None]:
    """Use Hydra inside the block, and raise UserError for its errors."""
    with hydra_errors(), hydra.initialize(config_path=None, version_base="1.3"):
        yield


@contextlib.contextmanager
def hydra_errors() -> Iterator[None]:
    """Raise UserError for an error of Hydra inside the block."""
    try:
        yield
    except MissingConfigException as error:
        group, _, name = str(error.missing_cfg_file).rpartition("/")  # hydra/launcher is one group
        text = " ".join(str(error).split())
        raise (unknown_name(group, name, error.options) if error.options else UserError(text)) from error
    except (HydraException, OmegaConfBaseException) as error:
        text = str(error) or str(error.__cause__)
        lines = [line.strip(" .\t") for line in text.splitlines() if "To append to your config" not in line]
        if unknown := re.match(r"Could not override '([\w.]+)'", text):
            raise unknown_name("option", unknown[1], option_names()) from error
        raise UserError("; ".join(filter(None, lines))) from error


def check_overrides(arguments: Iterable[str], *, sweep: bool = False) -> list[str]:
    """Check names before Hydra composes anything, and add the backbone of a task that has only one.

    UserError for an unknown name, with the nearest one, and for a missing name, with those to choose from. In a sweep,
    a group that is not named means all of it.
    """
    arguments = list(map(_normalized, _with_equals_signs(arguments)))
    parsed = parse_overrides(arguments)
    for index, override in enumerate(parsed):
        _check_key(override)
        if override.is_sweep_override() and not sweep:
            stack = "; write one stack in brackets: attention=[gla*3,vanilla]" * (override.key_or_group == "attention")
            raise UserError(
                f"'{arguments[index]:.80}' has several values; add -m to run them all: `cab run -m ...`{stack}"
            )
        if override.key_or_group == "attention" and not override.is_sweep_override():
            arguments[index] = f"attention={quoted(attention_name(names_of(override)[0]))}"
    chosen: dict[str, list[str]] = {}
    for override in parsed:  # of a group that is named twice, both values are checked
        chosen.setdefault(override.key_or_group, []).extend(names_of(override))
    _check_names("task", TASKS.names(), chosen)
    tasks = [TASKS.get(name) for name in chosen.get("task", TASKS.names())]
    backbones = sorted({name for task in tasks for name in task.names})
    if "backbone" not in chosen and len(backbones) == 1:
        chosen["backbone"] = backbones
        arguments.append(f"backbone={backbones[0]}")
    if "attention" in chosen:
        chosen["attention"] = list(map(attention_name, chosen["attention"]))
    has_source = any(override.key_or_group == "task.source" and override.value() for override in parsed)
    own = filter(is_own_name, chosen.get("dataset", ()) if has_source else ())
    choices: dict[str, Iterable[str]] = {
        "task": TASKS.names(),
        "dataset": sorted({*own, *(name for task in tasks for name in task.datasets)}),
        "backbone": BACKBONES.names() if "backbone" in chosen else backbones,
        "attention": [*ATTENTIONS.names(), *filter(is_stack, chosen.get("attention", ()))],
        "pattern": list(map(str, Pattern)),
        "preset": presets(),
        **groups_with_files(),
    }
    for group, names in choices.items():
        _check_names(group, names, chosen)
    for override in parsed:
        group, _, option = override.key_or_group.partition(".")
        if option and (group in REGISTRIES or group in USUAL_CHOICES):
            _check_option(group, option, chosen.get(group))
    for group in () if sweep else REQUIRED_GROUPS:
        if not chosen.get(group):
            article = "an" if group[0] in "aeiou" else "a"
            or_own = ", or a name of your own" if group == "dataset" and has_source else ""
            raise UserError(f"name {article} {group}: {group}=NAME, one of {', '.join(choices[group])}{or_own}")
    return arguments


def option_names() -> list[str]:
    """Return the keys of a run, and the options of the groups that are folders of configs/."""
    options = {group: sorted(set().union(*choices.values())) for group, choices in groups_with_files().items()}
    return [*RUN_KEYS, *(f"{group}.{option}" for group, names in options.items() for option in names)]


def _with_equals_signs(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the arguments; UserError for a key and its value in two arguments, as in ``preset smoke``."""
    arguments = list(arguments)
    for index, argument in enumerate(arguments):
        if argument in option_names():
            value = next((value for value in arguments[index + 1 :][:1] if "=" not in value), "VALUE")
            raise UserError(f"'{argument}' has no value; write `{argument}={value}`")
        yield argument


def parse_overrides(arguments: list[str]) -> list[Override]:
    """Parse overrides with Hydra's grammar; UserError for one that it cannot read."""
    parsed = []
    for argument in arguments:
        if not __debug__ and not {"(", "{"}.isdisjoint(argument):  # Hydra reads their inside in assertions
            raise UserError(f"'{argument:.80}' cannot be read without assertions: unset PYTHONOPTIMIZE")
        try:
            parsed.append(_parsed(argument))
        except (HydraException, RecursionError) as error:
            raise UserError(f"cannot read the override '{argument:.80}'; {_readable(argument)}") from error
        value = parsed[-1].value()
        if isinstance(value, IntervalSweep):
            raise refusal("interval()")
        if isinstance(value, Glob) and not names_of_group(parsed[-1].key_or_group):
            raise UserError(f"{argument:.80}: glob() selects names of a group; list values, or use range(1,4)")
    return parsed


def _readable(argument: str) -> str:
    """Return how to write an override that Hydra cannot read."""
    if argument.endswith(","):
        return "remove the comma, or the space after it"
    groups = [group for group in REQUIRED_GROUPS if argument in names_of_group(group)]
    if groups:
        return f"write `{groups[0]}={argument}`"
    return (
        "write KEY=VALUE, or attention.OPTION=VALUE for options; "
        "put a value with special characters in two pairs of quotes: `KEY=\"'VALUE'\"`"
    )


@functools.lru_cache(maxsize=1024)  # the cells of a sweep repeat most of them
def _parsed(argument: str) -> Override:
    return OverridesParser.create().parse_override(argument)


def quoted(name: str) -> str:
    """Return the name as a value of an override, in quotes if it has characters of Hydra's grammar."""
    is_plain = re.fullmatch(r"[\w./:-]*", name, re.ASCII)
    return name if is_plain else QuotedString(text=name, quote=Quote.single).with_quotes()


def written(name: str) -> str:
    """Return a name as users write it in an override: a stack in brackets, which :func:`check_overrides` quotes."""
    return f"[{name}]" if is_stack(name) and re.fullmatch(r"[\w./:+*,-]*", name, re.ASCII) else quoted(name)


def names_of(override: Override) -> list[str]:
    """Return the names that an override of a group lists."""
    value = override.value()
    if isinstance(value, Glob):
        names = value.filter(names_of_group(override.key_or_group))
        if not names:
            raise UserError(f"no {override.key_or_group} matches '{override.input_line:.80}'")
        return names
    return list(map(_name, value.list if isinstance(value, ChoiceSweep) else [value]))


def names_in(argument: str) -> list[str]:
    """Return the names that an override lists, from its text."""
    return names_of(*parse_overrides([argument]))


def _name(item: Any) -> str:
    """Return a name in an override; a list in brackets is a stack of attentions."""
    if isinstance(item, list):
        if any(isinstance(layer, list) for layer in item):
            raise UserError("a stack in a stack is not supported; list all layers, as in attention=[gla*2,vanilla]")
        return ",".join(map(_name, item))
    return item.text if isinstance(item, QuotedString) else str(item)


def attention_name(name: str) -> str:
    """Return the one form of the name of a class in a file, or of a stack; any other name is returned unchecked."""
    return ATTENTIONS.get(name_of_file(name)).name if is_file(name) or is_stack(name) else name


def _normalized(argument: str) -> str:
    """Write an override as Hydra reads it: quote an existing ``FILE.py:Class``, shorten patterns, add free keys."""
    key, _, value = argument.partition("=")
    if key == "cluster.extra" or key.startswith(("cluster.extra.", "other_attention.")):  # mappings without keys
        return f"++{argument}"
    if key == "pattern":
        return f"pattern={','.join(LONG_NAMES.get(name, name) for name in value.split(','))}" if value else argument
    file, _, class_name = value.rpartition(":")
    is_one = key == "attention" and class_name.isidentifier() and os.path.isfile(file)  # noqa: PTH113
    return f"attention={quoted(value)}" if is_one else argument


def _check_key(override: Override) -> None:
    """Raise UserError for a key that no run has, and for an override that deletes its key."""
    if override.is_delete():
        raise UserError(f"'{override.input_line}' removes an option: {replacement('~KEY')}")
    group, _, option = override.key_or_group.replace("/", ".").partition(".")
    value = override.value()
    if isinstance(value, dict) and not option and group in (*REGISTRIES, *USUAL_CHOICES):
        options = " ".join(f"{group}.{name}={inner}" for name, inner in value.items())
        raise UserError(f"'{override.input_line:.80}' has a mapping; write one argument per option: `{options}`")
    if group == "hydra":
        raise refusal(override.key_or_group)
    if group not in RUN_KEYS:
        raise unknown_name("option", override.key_or_group, option_names())
    if group == DataConfig.group:
        if not option:
            raise UserError("data is a group of options: set data.download")
        check_names([option], annotations_of(DataConfig), group)


def _check_names(group: str, names: Iterable[str], chosen: Mapping[str, Sequence[str]]) -> None:
    """Raise UserError if a chosen name does not exist."""
    for name in chosen.get(group, ()):
        if name in names:
            continue
        if group in REGISTRIES:
            raise unknown_class(group, name, names)
        error = unknown_name(group, name, names)
        if group != "dataset":
            raise error
        of_own = "for data of your own, set task.source"
        if not is_own_name(name):
            of_own = "a name of your own is a letter, and letters, digits, '.', '_' or '-'"
        raise UserError(f"{error}; {of_own}")


def _check_option(group: str, option: str, names: Sequence[str] | None) -> None:
    """Raise UserError unless one of the named choices of a group has the option, as in ``attention.num_landmarks``."""
    if group in REGISTRIES:
        registry = REGISTRIES[group]
        entries = [registry.get(name) for name in names] if names else registry.load()
        if not any(entry.has_option(option) for entry in entries):
            entries[0].check_options(OmegaConf.to_container(OmegaConf.from_dotlist([option])), group)
        return
    option = option.partition(".")[0]
    choices = groups_with_files()[group]
    if any(option in choices[name] for name in names or [USUAL_CHOICES[group]]):
        return
    owners = [f"{group}={name}" for name, options in choices.items() if option in options]
    if owners:
        raise UserError(f"{group}.{option} requires {' or '.join(owners)}")
    check_names([option], {name for options in choices.values() for name in options}, group)


@functools.cache
def groups_with_files() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Return the choices of the groups that are folders of configs/, each with its options."""
    choices: dict[str, dict[str, tuple[str, ...]]] = {}
    for group in USUAL_CHOICES:
        files = [path for folder in config_folders() for path in sorted((folder / group).glob("*.yaml"))]
        contents = {path.stem: yaml.safe_load(path.read_text()) for path in files}
        choices[group] = {name: tuple(key for key in content if key != "name") for name, content in contents.items()}
    return choices


def check_preset(preset: str, *, task: str, backbone: str) -> None:
    """Raise UnsupportedError if the task has no recipe, or the backbone no size; ``paper`` has the default sizes."""
    for path in (f"recipe/{task}/{preset}.yaml", *([f"size/{backbone}/{preset}.yaml"] if preset != "paper" else [])):
        if not any((folder / path).is_file() for folder in config_folders()):
            raise UnsupportedError(
                f"preset '{preset}' needs {path}, which is neither in configs/ nor in a package that an entry point "
                "of cab.configs names"
            )
