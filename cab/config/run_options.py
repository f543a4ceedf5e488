"""The options of a run, each checked against its type before anything is written or deleted."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypedDict

from cab.config.sources import REGISTRIES
from cab.config.trainer_config import ADDED, TrainerConfig
from cab.errors import UserError
from cab.records.record import Status
from cab.registry.options import annotations_of, check_names, check_types, with_words


class RunOptions(TypedDict):
    """The keys of a configuration; configs/run.yaml says what each is."""

    task: dict[str, Any]
    dataset: dict[str, Any]
    backbone: dict[str, Any]
    attention: dict[str, Any]
    trainer: dict[str, Any]
    logger: dict[str, Any]
    cluster: dict[str, Any]
    preset: str
    pattern: str
    seed: int
    other_attention: str | dict[str, Any]
    results_dir: str
    data_root: str | None
    data: dict[str, Any]
    device: str
    engine: str
    profile: bool
    force: bool
    retry: list[str]


KEYS: Mapping[str, Any] = typing.get_type_hints(RunOptions)
TRAINER_KEYS = tuple(field.name for field in dataclasses.fields(TrainerConfig))
DATA_KINDS: Mapping[str, Any] = {"download": bool}
_USUAL = {
    "seed": 1,
    "results_dir": "results/local",
    "profile": False,
    "force": False,
    "device": "auto",
    "engine": "torch",
    "retry": [],
}


def typed_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with yes and no as the truth values they stand for.

    Raises:
        ValueError: a key that is missing, or an option of the run, the task, the backbone, the attention or the
            training that is not what its annotation says.
    """
    config = {"data": {"download": False}, "profile": False, **config}  # records from before they could be set
    config["trainer"] = {**ADDED, **(config.get("trainer") or {})}
    given = [*config, *(f"trainer.{name}" for name in config.get("trainer") or ())]
    for name in (*KEYS, *(f"trainer.{name}" for name in TRAINER_KEYS)):
        if name not in given:
            raise UserError(f"{name} has no value: options are set, not removed")
    typed = with_words(config, KEYS)
    check_types({name: typed[name] for name in KEYS}, KEYS, _USUAL)
    if not set(typed["retry"]) <= set(Status):
        raise UserError(f"retry must be a list of {', '.join(Status)}, got {typed['retry']}")
    if not typed["results_dir"].strip():
        raise UserError("results_dir must name a folder, got ''; as results_dir=results/local")
    for group, registry in REGISTRIES.items():
        entry = registry.get(typed[group]["name"])
        typed[group] = with_words(typed[group], annotations_of(entry.cls))
        entry.check_options({name: value for name, value in typed[group].items() if name != "name"}, group)
    check_names(typed["trainer"], TRAINER_KEYS, "trainer")
    check_names(typed["data"], DATA_KINDS, "data")
    typed["data"] = with_words(typed["data"], DATA_KINDS)
    check_types(typed["data"], DATA_KINDS, {}, "data")
    booleans = {field.name: bool for field in dataclasses.fields(TrainerConfig) if field.type == "bool"}
    typed["trainer"] = with_words(typed["trainer"], booleans)
    return typed
