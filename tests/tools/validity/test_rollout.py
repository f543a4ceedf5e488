"""The rollout ledger: distances of decoding from one call, and the file that grows."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tools.validity.rollout import ledger, main


def test_steps_in_float32_are_one_rounding_from_the_row_and_a_batch_of_bfloat16_is_the_row() -> None:
    fine, coarse = (ledger("gla", dtype, seed=0, length=96, device="cpu") for dtype in ("float32", "bfloat16"))
    assert 1 < float(str(fine["steps"])) < 100
    assert 0.5 < float(str(coarse["row_error"])) < 5
    assert (coarse["batch"], coarse["packed_equal"]) == (0, 1)
    assert 0 < float(str(fine["kl"])) <= float(str(fine["kl_max"])) < 1e-9


def test_a_file_is_completed_and_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--out", str(tmp_path / "cpu.csv"), "--seeds", "0", "--length", "64", "linear"]
    main(words)
    text = (tmp_path / "cpu.csv").read_text()
    capsys.readouterr()
    main([*words, "local"])
    rows = list(csv.DictReader((tmp_path / "cpu.csv").read_text().splitlines()))
    assert (tmp_path / "cpu.csv").read_text().startswith(text)
    assert [(row["attention"], row["dtype"]) for row in rows][2:] == [("local", "float32"), ("local", "bfloat16")]
    assert len(capsys.readouterr().out.splitlines()) == 2
