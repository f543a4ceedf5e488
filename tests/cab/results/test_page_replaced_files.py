"""Reports replace files when they are complete: a failure, such as a full disk, leaves the old ones."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from cab.cli.main import main
from cab.files.disk import write_figure
from cab.results.table import write_csv
from tests.helpers.suite_records import CELLS, suite_record
from tools.suite.suite_anchors import write_anchors


def _write_anchors(path: Path) -> None:
    write_anchors([suite_record(task, name, 0) for task in CELLS for name in ("vanilla", "none")], path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.csv", lambda path: write_csv(pd.DataFrame({"x": [1]}), path)),
        ("a.csv", _write_anchors),
        ("a.png", lambda path: write_figure(Figure(), path)),
        ("a.pdf", lambda path: write_figure(Figure(), path)),
    ],
)
def test_a_file_is_replaced_and_never_truncated(name: str, write: Callable[[Path], object], tmp_path: Path) -> None:
    path, old = tmp_path / name, tmp_path / "old"
    path.write_text("old")
    old.hardlink_to(path)
    write(path)
    assert (old.read_text(), len(path.read_bytes()) > 3) == ("old", True)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([name, "old"])


def test_a_full_disk_leaves_the_old_page(
    add: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    results, page = add({"mse": 1.0}), tmp_path / "out" / "index.html"
    page.parent.mkdir()
    page.write_text("old")
    write_text = Path.write_text

    def fill(path: Path, text: str, **options: str) -> int:
        write_text(path, text[:100], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fill)
    assert main(["leaderboard", str(results.parent), "--out", str(page.parent)]) == 2
    assert "no space left" in capfd.readouterr().err.lower()
    assert page.read_text() == "old"
    assert not list(page.parent.glob(".*"))
