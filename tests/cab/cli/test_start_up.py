"""What must not load torch does not; the tables of `cab list` and `cab params`."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cab.cli.command import ROOT, cab

LIGHT = (
    "--help",
    "--version",
    "score results/paper --normalization official --csv",
    "leaderboard results/paper --format markdown",
    "correlation results/paper",
    "crossover results/paper/efficiency_cost.csv --csv",
    "paper audit --csv",
    "data list",
    "completion --line cab",
)
HEAVY = ("torch", "scipy.stats", "scipy.optimize", "matplotlib", "hydra")


def test_commands_that_need_no_model_load_neither_torch_nor_plotting() -> None:
    """All in one process, the first that loads a module is named."""
    script = (
        "import sys; from cab.cli.main import main\n"
        f"for command in {LIGHT!r}:\n"
        "    try:\n        code = main(command.split())\n    except SystemExit as stop:\n        code = stop.code\n"
        f"    loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "    if loaded or code:\n        sys.exit(f'{command}: {loaded} {code}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_listing_attentions_does_not_load_the_compiler_or_the_trainer() -> None:
    program = (
        "import sys\nfrom cab.cli.main import main\nmain(['list', 'attentions'])\n"
        "heavy = [m for m in ('torch._dynamo', 'lightning', 'hydra', 'pandas') if m in sys.modules]\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def table(*arguments: str, cwd: Path) -> list[dict[str, str]]:
    process = cab(*arguments, cwd=cwd)
    assert process.returncode == 0, process.stderr
    return list(csv.DictReader(io.StringIO(process.stdout)))


def test_listed_attentions(tmp_path: Path) -> None:
    rows = {row["attention"]: row for row in table("list", "attentions", "--csv", cwd=tmp_path)}
    assert list(next(iter(rows.values()))) == ["attention", "patterns", "complexity", "state", "paper", "origin"]
    assert {"vanilla", "none", "abc", "performer", "cosformer", "probsparse"} <= set(rows)
    assert rows["vanilla"]["patterns"] == "NS CS NC CC"
    assert rows["vanilla"]["state"].endswith("B/token")
    assert rows["abc"]["state"].endswith(" B")
    assert rows["probsparse"]["state"] == ""
    file, line = rows["abc"]["origin"].rsplit(":", 1)
    assert Path(file).read_text().splitlines()[int(line) - 1].startswith(("@register_attention", "class ABC"))


def test_listed_cells_are_the_ones_that_can_run(tmp_path: Path) -> None:
    rows = table("list", "cells", "--csv", cwd=tmp_path)
    assert list(rows[0]) == ["task", "dataset", "backbone", "pattern", "attention"]
    lstf = {tuple(row.values()) for row in rows}
    assert ("lstf", "etth1", "informer", "NC", "abc") in lstf
    assert ("lstf", "etth1", "informer", "NC", "probsparse") not in lstf
    assert ("lstf", "etth1", "informer", "CC", "abc") not in lstf
    assert len(lstf) == len(rows)


def test_counts_are_the_published_ones(tmp_path: Path) -> None:
    rows = table("params", "--csv", cwd=tmp_path)
    assert list(rows[0]) == ["pattern", "backbone", "attention", "params"]
    with (ROOT / "results/paper/parameters_reproduced.csv").open() as file:
        expected = {(r["pattern"], r["backbone"], r["attention"]): r["params"] for r in csv.DictReader(file)}
    counted = {(r["pattern"], r["backbone"], r["attention"]): r["params"] for r in rows}
    assert {cell: expected[cell] for cell in counted if "_wt103" not in cell[1]}.items() <= counted.items()
    informer = {cell for cell in expected if cell[1].startswith("informer")}
    assert len(informer) == 12
    assert informer <= set(counted)


def test_an_unknown_command_suggests_one(tmp_path: Path) -> None:
    process = cab("scor", cwd=tmp_path)
    assert process.returncode == 2
    assert "did you mean 'score'" in process.stderr


ENDING = "import atexit; from cab.cli.main import program; atexit.register(print, 'the end'); program()"


@pytest.mark.parametrize(
    ("processes", "arguments", "status"), [(1, ["--version"], 0), (2, ["--version"], 0), (2, ["dance"], 2)]
)
def test_one_of_several_processes_leaves_without_the_end_of_python(
    processes: int, arguments: list[str], status: int
) -> None:
    launched = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": str(processes), "LOCAL_RANK": "0"}
    process = subprocess.run(
        [sys.executable, "-c", ENDING, *arguments],
        env=os.environ | launched,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == status
    assert process.stdout.startswith("cab ") == (status == 0)
    assert process.stderr.startswith("cab: ") == (status == 2)
    assert ("the end" in process.stdout) == (processes == 1)
