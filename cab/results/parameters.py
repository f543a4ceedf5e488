"""Parameter counts of the networks of preset `paper`, built without allocating memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from cab.config.groups import paper_value
from cab.patterns import Pattern
from cab.registry.build import build_backbone
from cab.registry.registries import ATTENTIONS, BACKBONES
from cab.registry.tables import read_table, tuned_options


def count_parameters(cells: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str, str], int]:
    """Return the parameter count of each (pattern, backbone, attention) of Tables 16-19 that is registered.

    Backbone keys are those of the tables: ``informer_ett`` is the backbone ``informer`` in the size for one data set.
    """
    counts = {}
    for pattern, key, attention in cells:
        name, options, task = _network(key)
        if name not in BACKBONES or attention not in ATTENTIONS:
            continue
        other_attention = {str(p): {"name": "vanilla", **tuned_options(task, name, str(p), "vanilla")} for p in Pattern}
        spec = {"name": attention, **tuned_options(task, name, pattern, attention)}
        with torch.device("meta"):
            backbone = build_backbone(name, attention=spec, pattern=pattern, other_attention=other_attention, **options)
        counts[pattern, key, attention] = sum(parameter.numel() for parameter in backbone.parameters())
    return counts


def _network(key: str) -> tuple[str, dict[str, Any], str]:
    """Return backbone, options and task of a key of the tables (configs/paper/networks.csv)."""
    rows = [row for row in read_table("networks") if row["key"] == key]
    options = {row["option"]: paper_value("networks", "value", "key", key, "option", row["option"]) for row in rows}
    options.pop("", None)
    return rows[0]["backbone"], options, rows[0]["task"]
