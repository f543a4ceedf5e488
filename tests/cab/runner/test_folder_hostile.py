"""A results folder that somebody else has written: no command that reads it executes anything."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from cab.cli.main import main
from cab.records.identity import hash_of, settings
from cab.records.record import Record, with_checksum


class Payload:
    """Pickled, it makes a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.fixture
def hostile(uncut, tmp_path):
    """Results of a real cell, and records with harmful names and files."""
    folder = Path(shutil.copytree(uncut.config["results_dir"], tmp_path / "results"))
    mark = tmp_path / "executed"
    tag = f"!!python/object/apply:os.system ['touch {mark}']"
    evil = f"${{oc.env:HOME}}/../../{tmp_path}/escaped"
    for number, name in enumerate([tag, evil, "../../escaped"]):
        record = json.loads((folder / f"{uncut.hash}.json").read_text())
        named = {group: {"name": name} for group in ("attention", "dataset", "task")}
        record["cell"] |= dict.fromkeys(named, name)
        record["config"] |= {"results_dir": evil, **named}
        changed = settings(record["config"])
        record |= {"changed": changed, "hash": hash_of(changed), "status": "failed", "metrics": []}
        record |= {"task_version": 1, "command": f"cab run; touch {mark}"}
        path = folder / f"{number:016x}.json"
        path.write_text(json.dumps(with_checksum(record)))
        assert Record.read(path).cell["task"] == name
        started = folder / f"started{number}"
        started.mkdir()
        about = {"cell": record["cell"], "command": record["command"], "config": record["config"]}
        (started / "cell.json").write_text(json.dumps(about))
    (folder / "run.yaml").write_text(tag)
    (folder / "pickled.json").write_bytes(pickle.dumps(Payload(mark)))
    for path in folder.glob("*/"):
        for name in ("step-00000009.ckpt", "best-00000009.pt", "last.pt", "weights.pt"):
            (path / name).write_bytes(pickle.dumps(Payload(mark)))
    return folder


COMMANDS = """
status RESULTS
run --retry failed,interrupted results_dir=RESULTS
leaderboard RESULTS --out BOARD
score RESULTS
reproduce RESULTS/0000000000000000.json
reproduce RESULTS/pickled.json
"""


def test_no_command_executes_what_it_reads(hostile):
    for command in COMMANDS.strip().splitlines():
        names = command.replace("RESULTS", str(hostile)).replace("BOARD", str(hostile.parent / "board"))
        assert main(names.split()) in (0, 1, 2), command
        assert {path.name for path in hostile.parent.iterdir()} - {"board"} == {"results"}, command
