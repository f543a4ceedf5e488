"""Own values of the published tables from the registry, the configuration of preset `paper`, and its networks.

Each function adds them to the published values of a table; ``agrees`` compares the two.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from cab.registry.registries import ATTENTIONS, TASKS
from cab.registry.tables import read_table
from cab.results.published_cells import table3
from cab.results.rounding import Interval

YES, TRUNCATED, NO = "yes", "yes, truncated in print", "no"
"""Whether an own value agrees with the published one."""


def settings(published: pd.DataFrame) -> pd.DataFrame:
    """Return the options of preset `paper`, and patterns, complexities and metrics of the registry."""
    rows = published.to_dict("records")
    own = [_text(_resolved(row)) for row in rows]
    agrees = [_equal(text, row["published"]) if text else "" for text, row in zip(own, rows, strict=True)]
    return published.assign(own=own, agrees=agrees)


def _resolved(row: Mapping[Any, str]) -> Any:
    """Return the own value of an option: a fact of the registry, or a product of settings; None without one."""
    option, attention = row["option"], row.get("attention", "")
    if option == "supported":
        registered = TASKS.get(row["task"]).backbones[row["backbone"]] if "task" in row else ATTENTIONS.get(attention)
        patterns = registered if isinstance(registered, tuple) else registered.patterns
        return "yes" if row["pattern"] in map(str, patterns) else "no"
    if option == "complexity":
        return ATTENTIONS.get(attention).complexity
    if option == "repeats":
        [repeats] = [
            line["repeats"]
            for line in read_table("lstf")
            if (line["dataset"], line["features"]) == (row["dataset"], "M")
        ]
        return int(repeats)
    names = ("task", "pattern", "backbone")
    cell = next(c for c in table3() if all(row.get(name) in (None, "", getattr(c, name)) for name in names))
    dataset = row.get("dataset") or cell.parts[0][0]
    config = _paper_config(cell.task, dataset, cell.backbone, cell.pattern, attention or "vanilla")
    if option == "metrics":
        options = {name: value for name, value in config["task"].items() if name != "name"}
        metrics = TASKS.get(cell.task).build(dataset=dataset, **options).metrics
        return [metric.name for metric in metrics if metric.primary]
    values = [_option(config, path) for path in option.split("*")]
    if len(values) == 1:
        return values[0]
    return math.prod(values) if None not in values else None


def _option(config: Mapping[str, Any], path: str) -> Any:
    group, _, name = path.partition(".")
    options = config.get(group)
    return options.get(name) if isinstance(options, Mapping) else None


@functools.cache
def _paper_config(task: str, dataset: str, backbone: str, pattern: str, attention: str) -> dict[str, Any]:
    from cab.config.compose import compose  # imports Hydra

    cell = {"task": task, "dataset": dataset, "backbone": backbone, "pattern": pattern, "attention": attention}
    return compose([*(f"{key}={name}" for key, name in cell.items()), "preset=paper"])


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(_text, value))
    return "" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)


def _equal(own: str, published: str) -> str:
    """Return whether two lists of words are equal, numbers by their value."""
    one, other = own.split(), published.split()
    is_equal = len(one) == len(other) and all(
        a == b or number_of(a) == number_of(b) for a, b in zip(one, other, strict=True)
    )
    return YES if is_equal else NO


def number_of(text: str) -> float:
    """Return the number that a text is, or NaN."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def parameters(published: pd.DataFrame) -> pd.DataFrame:
    """Return the parameters of the networks of preset `paper`; those that are not registered have none."""
    cells = published[["pattern", "backbone", "attention"]].itertuples(index=False, name=None)
    own = [count / 1e6 if (count := _count(*cell)) else math.nan for cell in cells]
    agrees = [_rounded(value, text) for value, text in zip(own, published["published"], strict=True)]
    return published.assign(own=own, agrees=agrees)


@functools.cache
def _count(pattern: str, backbone: str, attention: str) -> int | None:
    from cab.results.parameters import count_parameters  # imports torch

    return next(iter(count_parameters([(pattern, backbone, attention)]).values()), None)


def _rounded(own: float, published: str) -> str:
    """Return whether a number has the printed digits, rounded or truncated."""
    if math.isnan(own):
        return ""
    if f"{own:.{len(published.partition('.')[2])}f}" == published:
        return YES
    low, high = Interval.printed(published)
    return TRUNCATED if low <= own < high else NO
