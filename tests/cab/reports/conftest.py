"""Result records to build leaderboards from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cab.cli.main import main
from cab.metric import Metric
from cab.records.record import Cost
from tasks.lm.task import LM
from tests.helpers.made_records import make_record, number

LM_METRICS = LM(dataset="pg19", context_lengths=(256, 512, 1024)).metrics


@pytest.fixture
def add(tmp_path: Path) -> Callable[..., Path]:
    """Write a record into ``tmp_path / "results"``; gives its path."""

    def write(metrics: Mapping[str, float | None] | Sequence[Metric], **changes: Any) -> Path:
        return make_record(metrics, **changes).write(tmp_path / "results")

    return write


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


@pytest.fixture(scope="package")
def suite_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of :func:`write_suite`."""
    return write_suite(tmp_path_factory.mktemp("page") / "results")


@pytest.fixture(scope="package")
def suite_out(suite_folder: Path) -> Path:
    """The folder of the page, with a message about a record that was cut in half."""
    path = make_record({"mse": 1.0}, hash="f" * 16).write(suite_folder)
    path.write_text(path.read_text()[:200])
    out = suite_folder.parent / "out"
    assert main(["leaderboard", str(suite_folder), "--out", str(out)]) == 0
    assert path.name in (out / "index.html").read_text().partition("Skipped files")[2]
    path.unlink()
    return out
