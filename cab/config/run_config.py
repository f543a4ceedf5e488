"""The checked configuration of a run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from cab.config.cluster_config import ClusterConfig, parse_cluster
from cab.config.trainer_config import TrainerConfig
from cab.errors import UserError
from cab.files.config_folders import run_defaults
from cab.patterns import Pattern
from cab.records.record import LARGEST_SEED, Status
from cab.registry.options import Limit, annotations_of, checked_options
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS, Registry

if TYPE_CHECKING:
    from cab.backbone import AttentionSpec

REGISTRIES: Mapping[str, Registry[Any]] = {"attention": ATTENTIONS, "backbone": BACKBONES, "task": TASKS}
GROUPS = ("task", "dataset", "backbone", "attention", "trainer", "logger", "cluster", "data")
DATA_KINDS: Mapping[str, Any] = {"download": bool}


class Choice(NamedTuple):
    """A task, backbone or logger: its name and options."""

    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A composed configuration, with every value checked and parsed.

    See configs/run.yaml for the meaning of each key.

    Attributes:
        other_attention: the attention for the slots outside the test, for every pattern.
        tuning: the grid of learning rates from which ``trainer.learning_rate`` was chosen; None for the rate of the
            recipe.
        data: the options of the group ``data``, which control how missing data are obtained.
        resolved: the configuration as plain values, as records store it.
    """

    task: Choice
    dataset: str
    backbone: Choice
    attention: AttentionSpec
    trainer: TrainerConfig
    logger: Choice
    cluster: ClusterConfig
    preset: str
    pattern: Pattern
    seed: Annotated[int, Limit(f"from 0 to {LARGEST_SEED}", lambda value: 0 <= value <= LARGEST_SEED)]
    other_attention: Mapping[Pattern, AttentionSpec]
    tuning: dict[str, Any] | None
    results_dir: Path
    data_root: Path | None
    data: Mapping[str, bool]
    device: str
    engine: str
    profile: bool
    force: bool
    retry: tuple[Status, ...]
    resolved: Mapping[str, Any]

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> RunConfig:
        """Check and parse the plain values of a composed configuration.

        Raises:
            UserError: a key is missing or unknown, or the value of an option is not of its annotation.
        """
        from cab.registry.build import parse_other_attention, parse_spec  # imports torch

        plain = checked_options(config, KEYS, usual=run_defaults())
        if not set(plain["retry"]) <= set(Status):
            raise UserError(f"retry must be a list of {', '.join(Status)}, got {plain['retry']}")
        if not plain["results_dir"].strip():
            raise UserError(f"results_dir must name a folder, got ''; as results_dir={run_defaults()['results_dir']}")
        for group, registry in REGISTRIES.items():
            name, options = _split(plain[group])
            entry = registry.get(name)
            plain[group] = {"name": entry.name, **entry.check_options(options, group)}
        plain["trainer"] = checked_options(plain["trainer"], annotations_of(TrainerConfig), "trainer")
        plain["data"] = checked_options(plain["data"], DATA_KINDS, "data")
        plain["pattern"] = Pattern.parse(plain["pattern"])
        parsed = {group: _split(plain[group]) for group in ("task", "backbone", "logger")}
        return cls(
            **{name: value for name, value in plain.items() if name not in parsed}
            | parsed
            | {
                "dataset": plain["dataset"]["name"],
                "attention": parse_spec(plain["attention"]),
                "trainer": TrainerConfig(**plain["trainer"]),
                "cluster": parse_cluster(plain["cluster"]),
                "other_attention": parse_other_attention(plain["other_attention"]),
                "results_dir": Path(plain["results_dir"]),
                "data_root": Path(os.path.expanduser(plain["data_root"])) if plain["data_root"] else None,  # noqa: PTH111
                "retry": tuple(map(Status, plain["retry"])),
            },
            resolved=plain | {"pattern": str(plain["pattern"])},
        )


TRAINER_KEYS = tuple(field.name for field in dataclasses.fields(TrainerConfig))
KEYS: Mapping[str, Any] = {
    **{name: kind for name, kind in annotations_of(RunConfig).items() if name != "resolved"},
    **dict.fromkeys(GROUPS, Mapping),
    "pattern": str,
    "other_attention": str | dict[str, Any],
    "results_dir": str,
    "data_root": str | None,
    "retry": list[str],
}
"""The annotation of each key of a composed configuration, before it is parsed."""


def _split(group: Mapping[str, Any]) -> Choice:
    return Choice(group["name"], {key: value for key, value in group.items() if key != "name"})
