"""Where Hydra finds configurations besides configs/: the registries, and the folders of other packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from cab.files.config_folders import config_folders
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS, Registry

REGISTRIES: Mapping[str, Registry[Any]] = {"attention": ATTENTIONS, "backbone": BACKBONES, "task": TASKS}


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
        wanted = {ObjectType.GROUP: groups, ObjectType.CONFIG: names, None: [*groups, *names]}
        return sorted(wanted[results_filter])

    def load_config(self, config_path: str) -> ConfigResult:
        group, name = _split(config_path)
        return ConfigResult(
            self.provider, self.full_path(), OmegaConf.create(usual_options(group, name)), {"package": None}
        )


def usual_options(group: str, name: str) -> dict[str, Any]:
    """Return the configuration of a name in a group: the name and its default options, resolved per cell."""
    options = REGISTRIES[group].get(name).options if group in REGISTRIES else {}
    if group == "attention":
        options = {option: f"${{table5:{name},{option}}}" for option in options}
    return {"name": name, **options}


class ConfigFolders(SearchPathPlugin):
    """Puts the registries and other packages' folders behind configs/."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("registries", "registry://")
        for folder in config_folders()[1:]:
            search_path.append("cab.configs", f"file://{folder}")


def register_sources() -> None:
    """Make Hydra look there, in every composition of this process."""
    Plugins.instance().register(RegistrySource)
    Plugins.instance().register(ConfigFolders)


def _split(config_path: str) -> tuple[str, str]:
    """Group and name; an attention's name may be the path of a file."""
    group, _, name = config_path.removesuffix(".yaml").partition("/")
    return group, name


def _names(group: str) -> list[str]:
    if group == "dataset":
        return sorted({dataset for task in TASKS for dataset in task.datasets})
    return REGISTRIES[group].names() if group in REGISTRIES else []
