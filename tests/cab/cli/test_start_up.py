"""What must not load torch does not; the tables of `cab list` and `cab params`."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cab.cli.main import main
from cab.registry.build import measure_decode_state
from cab.registry.registries import ATTENTIONS
from cab.registry.tables import decode_state_size, read_rows
from tests.cab.cli.command import ROOT

Table = Callable[..., list[dict[str, str]]]

LIGHT = (
    "--help",
    "--version",
    "list attentions",
    "list backbones",
    "list tasks",
    "score results/paper --normalization official --csv",
    "leaderboard results/paper --format markdown",
    "correlation results/paper",
    "crossover results/paper/efficiency_cost.csv --csv",
    "paper audit --csv",
    "data list",
    "completion bash",
)
HEAVY = ("torch", "scipy.stats", "matplotlib", "hydra")


def test_commands_that_need_no_model_load_neither_torch_nor_plotting() -> None:
    """All run in one process; the first that loads a module is named. Help and lists do not load pandas either."""
    script = (
        "import sys; from cab.cli.main import main\n"
        f"for command in {LIGHT!r}:\n"
        "    try:\n        code = main(command.split())\n    except SystemExit as stop:\n        code = stop.code\n"
        f"    heavy = {HEAVY!r} + ('pandas', 'pydantic') * command.startswith(('--', 'list'))\n"
        "    loaded = [name for name in heavy if name in sys.modules]\n"
        "    if loaded or code:\n        sys.exit(f'{command}: {loaded} {code}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.fixture
def table(capsys: pytest.CaptureFixture[str]) -> Table:
    def rows(*arguments: str) -> list[dict[str, str]]:
        assert main([*arguments, "--csv"]) == 0
        return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))

    return rows


def test_listed_attentions(table: Table) -> None:
    rows = {row["attention"]: row for row in table("list", "attentions")}
    assert list(next(iter(rows.values()))) == ["attention", "patterns", "complexity", "state", "paper", "origin"]
    assert {"vanilla", "none", "abc", "performer", "cosformer", "probsparse"} <= set(rows)
    assert rows["vanilla"]["patterns"] == "NS CS NC CC"
    assert rows["vanilla"]["state"].endswith("B/token")
    assert rows["abc"]["state"].endswith(" B")
    assert rows["probsparse"]["state"] == ""
    file, line = rows["abc"]["origin"].rsplit(":", 1)
    assert Path(file).read_text().splitlines()[int(line) - 1].startswith(("@register_attention", "class ABC"))


def test_the_table_of_decode_states_has_every_attention() -> None:
    own = [entry.name for entry in ATTENTIONS if entry.location.module.startswith("attentions.")]
    assert [row["attention"] for row in read_rows("decode_states.csv")] == own


@pytest.mark.slow
def test_the_table_of_decode_states_is_what_is_measured() -> None:
    measured = {entry.name: measure_decode_state(entry) for entry in ATTENTIONS}
    for row in read_rows("decode_states.csv"):
        assert row["state"] == measured[row["attention"]], f"{row['attention']}: run scripts/decode_states.py"


def test_an_attention_that_is_not_in_the_table_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {name: decode_state_size(ATTENTIONS.get(name)) for name in ("vanilla", "linear", "probsparse")}
    monkeypatch.setattr("cab.registry.tables.read_rows", lambda _: ())
    assert {name: decode_state_size(ATTENTIONS.get(name)) for name in expected} == expected


def test_listed_cells_are_the_ones_that_can_run(table: Table) -> None:
    rows = table("list", "cells")
    assert list(rows[0]) == ["task", "dataset", "backbone", "pattern", "attention"]
    lstf = {tuple(row.values()) for row in rows}
    assert ("lstf", "etth1", "informer", "NC", "abc") in lstf
    assert ("lstf", "etth1", "informer", "NC", "probsparse") not in lstf
    assert ("lstf", "etth1", "informer", "CC", "abc") not in lstf
    assert len(lstf) == len(rows)


@pytest.mark.slow
def test_counts_are_the_published_ones(table: Table) -> None:
    rows = table("params")
    assert list(rows[0]) == ["pattern", "backbone", "attention", "params"]
    with (ROOT / "results/paper/parameters_reproduced.csv").open() as file:
        expected = {(r["pattern"], r["backbone"], r["attention"]): r["params"] for r in csv.DictReader(file)}
    counted = {(r["pattern"], r["backbone"], r["attention"]): r["params"] for r in rows}
    assert {cell: expected[cell] for cell in counted if "_wt103" not in cell[1]}.items() <= counted.items()
    informer = {cell for cell in expected if cell[1].startswith("informer")}
    assert len(informer) == 12
    assert informer <= set(counted)


def test_an_unknown_command_suggests_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scor"]) == 2
    assert "did you mean 'score'" in capsys.readouterr().err
