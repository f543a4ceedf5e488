"""Identity of a run: the parts of its configuration that determine its cell and its hash."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from cab.records.code_hash import attention_hash
from cab.registry.registries import ATTENTIONS, TASKS, is_file
from cab.registry.tables import attention_label

RUN_KEYS = ("results_dir", "data_root", "data", "device", "force", "retry", "logger", "cluster", "engine", "profile")
"""Keys that specify where and how a cell runs; all other keys identify it and determine its hash."""
MACHINE_KEYS = ("checkpoint_every", "micro_batch_size", "num_workers", "strategy")
"""Settings of the trainer that depend on the machine and do not change the result."""
DEFAULT_ENGINE = "torch"
NAMED = ("task", "dataset", "backbone")
"""Groups of the configuration whose name is a key of the cell."""


def identity_of(config: Mapping[str, Any], *, task_version: int, initial_weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :func:`cell_hash` hashes.

    Args:
        config: resolved configuration.
        task_version: version of the task's evaluation protocol.
        initial_weights: identification of the weights that training starts from; empty for random ones.
    """
    keys = {key: value for key, value in config.items() if key not in RUN_KEYS}
    keys["trainer"] = measured(keys["trainer"])
    return {**keys, **other_engine(config), **initial_weights, "task_version": task_version}


def measured(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the trainer that determine the result: all but :data:`MACHINE_KEYS`."""
    return {name: value for name, value in trainer.items() if name not in MACHINE_KEYS}


def other_engine(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the engine if it is not the default, since a cell with another engine is a different cell."""
    return {} if config["engine"] == DEFAULT_ENGINE else {"engine": config["engine"]}


def with_engine(variant: str, config: Mapping[str, Any]) -> str:
    """Return the variant of the data set, followed by the engine if it is not the default."""
    return " ".join(filter(None, (variant, *other_engine(config).values())))


def cell_hash(identity: Mapping[str, Any]) -> str:
    """Return the name of a run: the first 16 hexadecimal digits of the SHA-256 of its cell's identity."""
    plain = json.loads(json.dumps(identity))  # as in a record, where all keys are text
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def check_identity(content: Mapping[str, Any]) -> None:
    """Raise ValueError if the cell, the configuration, the engine and the hash in a record do not agree."""
    cell, config = content["cell"], content["config"]
    expected = {name: config[name]["name"] for name in NAMED}
    expected |= {name: config[name] for name in ("pattern", "preset", "seed")}
    for name, value in expected.items():
        if (type(cell[name]), cell[name]) != (type(value), value):
            raise ValueError(f"its cell has {name} {cell[name]!r:.40}, its configuration {value!r:.40}")
    if not _is_label(cell["attention"], config["attention"], is_tuned=config.get("tuning") is not None):
        raise ValueError(
            f"its cell has attention {cell['attention']!r:.40}, its configuration {config['attention']!r:.60}"
        )
    engine = other_engine(config).get("engine", "")
    if content["engine"] != config["engine"] or not cell["config_variant"].endswith(engine):
        raise ValueError(f"its engine is {content['engine']!r:.40}, that of its configuration {config['engine']!r:.40}")
    identity = identity_of(
        config, task_version=content["task_version"], initial_weights=content.get("initial_weights", {})
    )
    if content["hash"] != cell_hash(identity):
        raise ValueError(f"its hash is {content['hash']}, that of its configuration {cell_hash(identity)}")


def check_names(content: Mapping[str, Any]) -> None:
    """Raise ValueError if the names in a cell that follow from code are not those of its configuration.

    The variant of the data set follows from the code of the task. The options in the name of the attention follow from
    its defaults. They are compared if this code is installed and has the options of the configuration. A name is not
    compared with the defaults of changed code. Files of users are not imported to read a record.
    """
    cell, config = content["cell"], content["config"]
    known = {}
    if content["attention_code"] and content["attention_code"] == _installed_code(config["attention"]["name"]):
        known["attention"] = _label(_text(config, "attention", *NAMED, "pattern", "preset", "tuning"))
    if not content.get("initial_weights"):  # the variant names their run, whose record may be elsewhere
        known["config_variant"] = _variant(_text(config, "task", "dataset", "trainer", "engine"))
    for name, own in known.items():
        if own is not None and cell[name] != own:
            raise ValueError(f"its cell has {name} {cell[name]!r:.60}, its configuration {own!r:.60}")


def _text(config: Mapping[str, Any], *keys: str) -> str:
    return json.dumps({key: config.get(key) for key in keys}, sort_keys=True)


@functools.cache
def _installed_code(attention: str) -> str:
    """Return the hash of the code of a registered attention; empty if it is not installed."""
    if is_file(attention) or attention not in ATTENTIONS:
        return ""
    place = ATTENTIONS.get(attention).place
    return "" if place.file is None else attention_hash(place.qualname, place.file, place.module)


@functools.lru_cache(maxsize=10_000)
def _label(text: str) -> str | None:
    """Return the name of an attention in tables for a configuration in JSON; None if the installed code has none."""
    with contextlib.suppress(Exception):
        return attention_label(json.loads(text))
    return None


@functools.lru_cache(maxsize=10_000)
def _variant(text: str) -> str | None:
    """Return the variant of the data set for a configuration in JSON; None if the installed code has none."""
    config = json.loads(text)
    options = {name: value for name, value in config["task"].items() if name != "name"}
    with contextlib.suppress(Exception):
        entry = TASKS.get(config["task"]["name"])
        if options.keys() == entry.options.keys():
            task = entry.build(dataset=config["dataset"]["name"], **options)
            task.bind_config(config)
            return with_engine(task.config_variant, config)
    return None


def _is_label(label: str, attention: Mapping[str, Any], *, is_tuned: bool) -> bool:
    """Return whether ``label`` is the name of an attention, with any of its options, such as ``abc(num_landmarks=8)``.

    A tuned run has ``tuned`` as its last option.

    A class of a file can have the file and the class as its name, or the class alone.
    """
    settings = [f"{name}={value}" for name, value in sorted(attention.items()) if name != "name"]
    shown = [text for text in settings if re.search(rf"[( ]{re.escape(text)}[,)]", label)]
    shown += ["tuned"] if is_tuned else []
    names = {attention["name"], attention["name"].rpartition(":")[2]}
    return label in {name + (f"({', '.join(shown)})" if shown else "") for name in names}
