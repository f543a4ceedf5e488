"""Records of a rehearsal: preset ``smoke`` on generated data, as ``cab run`` writes them, without training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cab.metric import Metric
from cab.records.record import Record, Status
from tests.helpers.made_records import COST, make_about, make_record, number

ROUGE = tuple(f"{name}{kind}" for kind in ("", "_plain") for name in ("rouge1", "rouge2", "rougeL"))
RUNS = (
    *((("NC", "lstf", "informer", variant), ("vanilla", "abc", "performer"), ("mse", "mae")) for variant in "MS"),
    (("NC", "pcc", "pointr", ""), ("vanilla", "abc", "performer"), ("cd_l1", "cd_l2", "f_score")),
    (("CS", "sum", "transformer", ""), ("vanilla", "abc", "ssd"), ROUGE),
    (("NS", "sum", "transformer", ""), ("vanilla", "abc"), ROUGE),
)
"""Pattern, task, backbone and variant; attentions; metrics."""
RECALL: dict[str, Any] = {"task": "probe", "dataset": "recall", "backbone": "mixer", "pattern": "NS", "preset": "smoke"}


def write_rehearsal(folder: Path, *, diverged: bool = False) -> Path:
    """Four tasks in three patterns, two seeds; with ``diverged``, a third seed of Sum CS, where abc has no score."""
    for (pattern, task, backbone, variant), attentions, names in RUNS:
        cell: dict[str, Any] = {"task": task, "dataset": "synthetic", "config_variant": variant, "backbone": backbone}
        cell |= {"pattern": pattern, "preset": "smoke"}
        for attention in attentions:
            for seed in (1, 2, 3) if diverged and pattern == "CS" else (1, 2):
                metrics = [_metric(name, number(name, pattern, variant, attention, seed)) for name in names]
                who = cell | {"attention": attention, "seed": seed}
                (_failed(who, metrics) if (attention, seed) == ("abc", 3) else make_record(metrics, **who)).write(
                    folder
                )
    accuracy = Metric("accuracy", "of answers", higher_is_better=True).measured(0.0625)
    recall = RECALL | {"config_variant": "vocabulary 32 pairs 4 distance 2", "attention": "abc", "seed": 1}
    make_record([accuracy], **recall).write(folder)
    return folder


def _metric(name: str, value: float) -> Metric:
    higher = name in (*ROUGE, "f_score")
    return Metric(name, "", higher_is_better=higher, primary=not name.endswith("_plain")).measured(value)


def _failed(cell: Mapping[str, Any], metrics: list[Metric]) -> Record:
    error = FloatingPointError("the loss is NaN")
    return Record.failed(
        make_about(**cell), status=Status.DIVERGED, error=error, step=3, cost=COST, metrics=metrics, engine_facts={}
    )
