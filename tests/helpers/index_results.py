"""Records of real data, which have an index."""

from __future__ import annotations

from pathlib import Path

from cab.records.record import Cost
from tasks.lm.task import LM
from tests.helpers.made_records import make_record, number

LM_METRICS = LM(dataset="pg19", context_lengths=(256, 512, 1024)).metrics


def write_suite(folder: Path) -> Path:
    """Two patterns, three tasks, four attentions, two seeds; s4d failed on one task; naive forecasts recorded."""
    naive = {"repeat_last_value": {"mse": 2.5, "mae": 1.25}}
    point = {"task": "pcc", "dataset": "pcn", "config_variant": "", "backbone": "pointr"}
    lm = {"task": "lm", "dataset": "pg19", "config_variant": "", "backbone": "gpt2", "pattern": "CS"}
    text = lm | {"task": "sum", "dataset": "multi_news", "backbone": "transformer"}
    for attention in ("vanilla", "abc", "local", "s4d"):
        for seed in (0, 1):
            who = {"attention": attention, "seed": seed}
            lstf = {name: number(name, *who.values()) for name in ("mse", "mae")}
            cost = Cost(params=700 + seed, train_seconds=60, peak_memory_bytes=9)
            make_record(lstf, **who, baselines=naive, cost=cost).write(folder)
            make_record({"f_score": number("f", *who.values())}, **who, **point).write(folder)
            make_record({"f_score": number("sum", *who.values())}, **who, **text).write(folder)
            if attention != "s4d":
                metrics = [metric.measured(10 + number(metric.name, *who.values())) for metric in LM_METRICS]
                make_record(metrics, **who, **lm).write(folder)
    return folder
