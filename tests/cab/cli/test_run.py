"""`cab run`: mistakes and sweeps; tests/project/test_howto.py installs and runs packages."""

import json

from cab.cli.run import _task_table
from tests.helpers.made_records import make_record

CELL = {"task": "lstf", "dataset": "synthetic", "backbone": "informer", "attention": "vanilla", "pattern": "NC"}


def overrides(**changes: str) -> list[str]:
    return [f"{key}={value}" for key, value in {**CELL, "preset": "smoke", "device": "cpu", **changes}.items()]


def test_debug_shows_the_traceback(cab):
    assert "Traceback" in cab("run", *overrides(attention="vanila"), "--debug", status=2).err


def test_a_sweep_skips_what_cannot_run_and_is_done_once(tmp_path, cab):
    sweep = ["-m", *overrides(attention="probsparse,none", pattern="NC", results_dir=str(tmp_path / "r"))]
    sweep.append("trainer.max_steps=1")
    first = cab("run", *sweep)
    assert "skipped: attention 'probsparse' does not support pattern NC" in first.err
    alone = cab("run", "-m", *overrides(attention="probsparse", pattern="NC"), status=2).err
    assert "nothing can run: attention 'probsparse' does not support pattern NC" in alone
    [path] = (tmp_path / "r").glob("*.json")
    record = json.loads(path.read_text())
    assert path.stem == record["hash"]
    assert {m["name"] for m in record["metrics"]} == {"mse", "mae"}
    assert set(record["baselines"]) == {"repeat_last_value", "repeat_last_day", "ridge"}
    assert record["cost"]["params"] > 0
    stamp = path.stat().st_mtime_ns
    second = cab("run", *sweep)
    assert second.out == first.out
    assert second.err.count("cached: ") == 1
    assert path.stat().st_mtime_ns == stamp


def test_a_table_of_runs_names_what_differs():
    place = {"dataset": "synthetic", "pattern": "CS", "preset": "smoke", "attention": "none", "verified": True}
    baselines = {part: {"ridge": {"mse": value}, "zero": {"mse": 1.0}} for part, value in (("M", 0.5), ("S", 0.25))}
    records = [make_record({"mse": 1.5}, config_variant=p, baselines=b, seed=1, **place) for p, b in baselines.items()]
    title, *rows = (" ".join(line.split()) for line in _task_table(records).replace("† ", "").splitlines())
    assert title == "lstf synthetic informer CS smoke; mse of trivial baselines: zero 1.0000"
    of_m, of_s = "M none 1 1.5000 0.5000 1,000,003 -", "S none 1 1.5000 0.2500 1,000,003 -"
    assert rows == ["config_variant attention seed mse ridge mse params seconds", of_m, of_s]
