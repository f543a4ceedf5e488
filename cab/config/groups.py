"""Groups of configurations for Hydra: from the registries, and from the folders of configurations.

``hydra_plugins/cab_groups.py`` makes Hydra use them in every program, so ``hydra.compose`` and ``@hydra.main`` need no
further preparation.
"""

from __future__ import annotations

from typing import Any

import yaml
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

from cab.config.run_config import REGISTRIES
from cab.errors import UserError
from cab.registry.entries import AttentionEntry
from cab.registry.names import is_file, is_own_name, is_stack
from cab.registry.registries import ATTENTIONS, TASKS
from cab.registry.stacks import StackEntry
from cab.registry.tables import config_folders, read_table, tuned_options


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
        if group == "dataset":  # of another name, the runner checks whether the task has a source for it
            return is_own_name(name) or name in names_of_group(group)
        is_other = group == "attention" and (is_file(name) or is_stack(name) or name in ATTENTIONS)
        return self.is_group(group) and (is_other or name in names_of_group(group))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        groups = ["dataset", *REGISTRIES] if config_path.strip("/") == "" else []
        names = names_of_group(config_path.strip("/"))
        listed = {ObjectType.GROUP: groups, ObjectType.CONFIG: names, None: [*groups, *names]}
        return sorted(listed[results_filter])

    def load_config(self, config_path: str) -> ConfigResult:
        group, name = _split(config_path)
        options = REGISTRIES[group].get(name).options if group in REGISTRIES else {}
        content = attention_options(name) if group == "attention" else {"name": name, **options}
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(content), {"package": None})


class ConfigFolders(SearchPathPlugin):
    """Puts the registries, configs/ and the folders of other packages behind the search path of a program."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("registries", "registry://")
        for folder in config_folders():
            search_path.append("cab.configs", f"file://{folder}")


def _split(config_path: str) -> tuple[str, str]:
    """Return group and name; an attention's name may be the path of a file."""
    group, _, name = config_path.removesuffix(".yaml").partition("/")
    return group, name


def names_of_group(group: str) -> list[str]:
    """Return the choices of a group of the registries; none for another group."""
    if group == "dataset":
        return sorted({dataset for task in TASKS for dataset in task.datasets})
    return REGISTRIES[group].names() if group in REGISTRIES else []


def attention_options(name: str) -> dict[str, Any]:
    """Return the content of the group ``attention``: a name and options, resolved by the cell."""
    return {"name": name, **_tuned(ATTENTIONS.get(name))}


def _tuned(entry: AttentionEntry) -> dict[str, Any]:
    """Return the resolver of each option of an attention, or of the parts of a stack."""
    if isinstance(entry, StackEntry):
        return {name: _tuned(entry.parts[name]) for name in entry.options}
    if is_file(entry.name):
        return dict(entry.options)
    return {option: f"${{tuned:{entry.name},{option}}}" for option in entry.options}


def paper_value(table: str, column: str, *where: str) -> Any:
    """Resolve ``${paper:TABLE,COLUMN,KEY,VALUE,...}``: one value of a table of configs/paper; empty cells are null.

    An empty cell of a key matches any value. The earliest row wins, so rows with such a cell come last.
    """
    key_values = dict(zip(where[::2], where[1::2], strict=True))
    for row in read_table(table):
        if all(row[key] in (value, "") for key, value in key_values.items()):
            return yaml.safe_load(row[column]) if row[column] else None
    raise UserError(f"configs/paper/{table}.csv has no row with {', '.join(where)}")


def _tuned_value(attention: str, option: str, *, _root_: DictConfig) -> Any:
    """Resolve ``${tuned:ATTENTION,OPTION}``: the option in this cell, see :func:`cab.registry.tables.tuned_options`."""
    cell = _root_.task.name, _root_.backbone.name, str(_root_.pattern), attention
    return tuned_options(*cell, preset=_root_.preset)[option]


OmegaConf.register_new_resolver("paper", paper_value, replace=True)
OmegaConf.register_new_resolver("tuned", _tuned_value, replace=True)
