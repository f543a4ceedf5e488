"""Tables in configs/: published values, and the options of attentions per cell."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from cab.files.config_folders import config_folders
from cab.registry.registries import ATTENTIONS, TASKS, AttentionEntry


def read_table(name: str) -> tuple[dict[str, str], ...]:
    """Read a table of configs/paper, followed by the rows that other packages add (:func:`config_folders`)."""
    return read_rows(f"paper/{name}.csv")


@functools.cache
def read_rows(path: str) -> tuple[dict[str, str], ...]:
    """Read the rows of a CSV file from every folder of configurations that has it."""
    rows: list[dict[str, str]] = []
    for folder in config_folders():
        if (folder / path).exists():
            with (folder / path).open(newline="") as file:
                rows += csv.DictReader(file)
    return tuple(rows)


def tuned_options(task: str, backbone: str, pattern: str, attention: str, *, preset: str = "paper") -> dict[str, Any]:
    """Return the options of an attention in a cell: Table 5 if it has a row, else the constructor's defaults.

    In preset mini, whose sequences are short, configs/suite/options.csv has the last word: windows, landmarks,
    features and states of about the published share.
    """
    options = dict(ATTENTIONS.get(attention).options)
    for _, row in tuning_rows(task, backbone, pattern, attention, preset=preset):
        if row["option"] in options:
            options[row["option"]] = yaml.safe_load(row["value"])
    return options


def tuning_rows(
    task: str, backbone: str, pattern: str, attention: str, *, preset: str
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows that set options of an attention in a cell, with their file; later rows override earlier ones."""
    task = TASKS.get(task).options_from_task if task in TASKS else task
    for row in reversed(read_table("table5")):  # the first row, ours, has the last word
        applies = (row["task"], row["pattern"], row["attention"]) == (task, pattern, attention)
        if applies and row["backbone"] in ("", backbone):
            yield "paper/table5.csv", row
    for row in read_rows("suite/options.csv") if preset == "mini" else ():
        if row["task"] in ("", task) and row["pattern"] in ("", pattern) and row["attention"] == attention:
            yield "suite/options.csv", row


def attention_label(config: Mapping[str, Any]) -> str:
    """Return the name of an attention in tables, with its options that differ from those of its cell.

    Args:
        config: resolved configuration.
    """
    name, own = config["attention"]["name"], config["attention"]
    usual = tuned_options(
        config["task"]["name"], config["backbone"]["name"], config["pattern"], name, preset=config["preset"]
    )
    shown = [f"{key}={value}" for key, value in sorted(own.items()) if key != "name" and value != usual[key]]
    shown += [] if config.get("tuning") is None else ["tuned"]
    return ATTENTIONS.get(name).label + (f"({', '.join(shown)})" if shown else "")


def decode_state_size(entry: AttentionEntry) -> str:
    """Return the size of an attention's decode state, see :func:`cab.registry.build.measure_decode_state`.

    It is read from ``decode_states.csv``, which ``scripts/decode_states.py`` writes; other attentions are measured.
    """
    for row in read_rows("decode_states.csv"):
        if row["attention"] == entry.name:
            return row["state"]
    from cab.registry.build import measure_decode_state  # imports torch

    return measure_decode_state(entry)
