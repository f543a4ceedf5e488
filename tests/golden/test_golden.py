"""Stored values that a change of structure must not change.

A deliberate change deletes the stored file; the next run of the test writes it again and fails once, so that the
difference is in the commit.
"""

from __future__ import annotations

import csv
import functools
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cab import build_attention
from cab.records.files import COMMITTED_DIRS
from cab.records.record import records_in
from cab.registry.registries import ATTENTIONS
from cab.runner.cell import Cell, current_config
from tests.helpers.command import ROOT, cab

OUTPUT = Path(__file__).with_name("output")
TABLES = {
    "score_core_csv": "score results/core --csv",
    "score_paper_csv": "score results/paper --normalization official --csv",
    "score_pairwise": "score results/core --pattern CC --show pairwise --csv",
    "score_check": "score results/core --check --csv",
    "correlation": "correlation results/core",
    "paper_audit": "paper audit",
}
"""Commands whose numbers no other test has."""


def compare(name: str, text: str) -> None:
    path = OUTPUT / name
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path} was written; commit it")
    assert text == path.read_text()


def output(command: str) -> str:
    run = cab(*shlex.split(command), cwd=ROOT, COLUMNS="100", NO_COLOR="1")
    assert run.returncode in (0, 1), run.stderr
    return re.sub(r"(\.py):\d+", r"\1", run.stdout)  # without the lines of classes


@pytest.mark.parametrize("folder", COMMITTED_DIRS, ids=lambda folder: folder.name)
def test_every_committed_record_is_found(folder: Path) -> None:
    """The configuration of every committed record, with the options of today, still has the hash of the record."""
    cells: dict[str, Cell] = {}
    for _, record in records_in(folder, []):
        same = json.dumps({**record.config, "seed": 0, "results_dir": ""}, sort_keys=True)
        if same not in cells:  # the hash of its other seeds is checked where they are read
            cells[same] = Cell.from_config(current_config(record))
            assert cells[same].hash == record.hash
    assert cells


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_tables_of_commands(name: str) -> None:
    compare(f"{name}.txt", output(TABLES[name]))


@pytest.mark.slow
@pytest.mark.parametrize("folder", [folder.name for folder in COMMITTED_DIRS])
def test_tables_of_the_leaderboard(folder: str, tmp_path: Path) -> None:
    """The committed table of each set, and that of the suite."""
    output(f"leaderboard results/{folder} --out {tmp_path}")
    committed_table = ROOT / "results" / folder / "leaderboard.csv"
    assert (tmp_path / "leaderboard.csv").read_text() == committed_table.read_text()
    if folder == "core":
        compare("leaderboard_core_suite.csv", (tmp_path / "suite.csv").read_text())


def checksum(name: str, pattern: str) -> list[float]:
    """Return output and gradients of a training step, each as its projection onto fixed random numbers."""
    torch.manual_seed(0)
    attention = build_attention(name, pattern=pattern, embed_dim=32, num_heads=4)
    generator = torch.Generator().manual_seed(1)
    draw: Callable[..., torch.Tensor] = functools.partial(torch.randn, generator=generator)
    inputs = [draw(2, 37, 32).requires_grad_()]
    if attention.pattern.is_cross:
        inputs += [draw(2, 37 if attention.pattern.is_causal else 45, 32).requires_grad_() for _ in range(2)]
    torch.manual_seed(2)
    result = attention(*inputs)
    result.backward(draw(result.shape))
    gradients = [weight.grad for weight in attention.parameters() if weight.grad is not None]
    values = [result.detach(), *(tensor.grad for tensor in inputs if tensor.grad is not None), *gradients]
    return [float((value.double() * draw(value.shape).double()).sum()) for value in values]


def test_quick_checksums_of_attentions() -> None:
    """Outputs and gradients of every attention and pattern; rounding may differ between processors."""
    path = OUTPUT / "checksums.csv"
    pairs = [(entry.name, str(pattern)) for entry in ATTENTIONS for pattern in entry.patterns]
    if not path.exists():
        rows = [[*pair, *(f"{value:.9g}" for value in checksum(*pair))] for pair in pairs]
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
        pytest.fail(f"{path} was written; commit it")
    stored = {(name, pattern): list(map(float, values)) for name, pattern, *values in csv.reader(path.open())}
    assert stored.keys() == set(pairs), f"delete {path} and run this test twice; only rows of these pairs may differ"
    different = [
        pair
        for pair in pairs
        if not torch.allclose(*map(torch.tensor, (checksum(*pair), stored[pair])), rtol=1e-3, atol=1e-3)
    ]
    assert not different
