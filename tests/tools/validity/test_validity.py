"""The page on validity: its answers are those of the committed results, and of hand-made results with known answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

from tools.validity import validity


@pytest.mark.slow
def test_the_page_has_the_answers_of_the_committed_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, run ``python -m tools.validity.validity``."""
    committed = validity.PAGE.read_text()
    shutil.copytree(validity.RESULTS, tmp_path / "results")
    (tmp_path / "none").mkdir()
    (tmp_path / "page.md").write_text(validity.BLOCK.sub("", committed))
    monkeypatch.setattr(validity, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(validity, "RESULTS", tmp_path / "results")
    validity.main([str(tmp_path / "none")])
    assert (tmp_path / "page.md").read_text() == committed
    for path in validity.RESULTS.glob("*.csv"):
        assert path.read_text() == (tmp_path / "results" / path.name).read_text(), path.name


def series(errors: dict[tuple[str, str], float]) -> pd.DataFrame:
    rows = [
        (dataset, pattern, attention, seed, error * (1 + seed / 100), 0.5, 0.7)
        for dataset in ("a", "b")
        for (attention, pattern), error in errors.items()
        for seed in (1, 2, 3)
    ]
    columns = ["dataset", "pattern", "attention", "seed", "mse", "ridge_mse", "repeat_last_day_mse"]
    return pd.DataFrame(rows, columns=columns)


def test_answers_on_series() -> None:
    errors = {("vanilla", "NC"): 0.6, ("none", "NS"): 0.5, ("none", "CS"): 0.6, ("none", "NC"): 0.9}
    answer, rows = validity.answer_series(series(errors))
    assert "NS **no** (-17%" in answer
    assert "CS **undecided** (+0%" in answer
    assert "NC **yes** (+50%" in answer
    assert "linear forecast? **No**." in answer
    assert rows[0][:3] == ["`a`", "0.612 ± 0.006", "0.510 ± 0.005"]
    assert "linear forecast? **Yes**." in validity.answer_series(series({**errors, ("vanilla", "NC"): 0.3}))[0]
    assert "linear forecast? **Mixed**." in validity.answer_series(series({**errors, ("vanilla", "NC"): 0.49}))[0]
