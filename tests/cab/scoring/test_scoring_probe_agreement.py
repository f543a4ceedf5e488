"""Do probes rank attentions as the tasks do? By hand, and as the command says."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pandas as pd
import pytest

from cab.cli.main import main
from cab.records.results import MINI_DIR
from cab.scoring import probe_agreement, read_probes
from cab.scoring.correlation import SETTING

NAMES = ["vanilla", "abc", "local", "linear"]
PROBES = MINI_DIR.parent / "probes" / "probes.csv"


def asked(accuracies: list[float], *, dataset: str = "recall", pattern: str = "CS", pairs: int = 16) -> pd.DataFrame:
    place = dict(zip(SETTING, ["mini", pattern, dataset, pairs, 8, 0.0, 64], strict=True))
    return pd.DataFrame({**place, "attention": NAMES[: len(accuracies)], "accuracy": accuracies})


def scores(values: list[float], task: str = "lm", pattern: str = "CS") -> pd.DataFrame:
    return pd.DataFrame({"pattern": pattern, "task": task, "attention": NAMES[: len(values)], "index": values})


def test_it_is_the_correlation_of_ranks_in_the_same_pattern() -> None:
    probes = pd.concat([asked([0.9, 0.5, 0.1, 0.7]), asked([0.1, 0.5, 0.9, 0.7], pattern="NC")])
    [row] = probe_agreement(probes, scores([3.0, 1.0, 0.0, 2.0])).to_dict("records")
    assert (row["pattern"], row["probe"], row["task"]) == ("CS", "recall, pairs 16, width 64", "lm")
    assert (row["spearman"], row["shared"]) == (1.0, 4)


def test_of_several_settings_that_of_most_attentions_counts_and_then_the_hardest() -> None:
    fewer, easy, hard = asked([0.3, 0.2, 0.1], pairs=64), asked([1.0] * 4, pairs=8), asked([0.9, 0.5, 0.1, 0.7])
    [row] = probe_agreement(pd.concat([fewer, easy, hard]), scores([3.0, 1.0, 0.0, 2.0])).to_dict("records")
    assert (row["probe"], row["shared"]) == ("recall, pairs 16, width 64", 4)
    [row] = probe_agreement(pd.concat([fewer, hard]), scores([3.0, 1.0, 0.0])).to_dict("records")
    assert (row["probe"], row["shared"]) == ("recall, pairs 64, width 64", 3)


def test_fewer_than_three_attentions_are_no_row() -> None:
    assert probe_agreement(asked([0.3, 0.2]), scores([2.0, 1.0])).empty
    assert probe_agreement(asked([0.3, 0.2, 0.1]), scores([2.0, 1.0])).empty


def test_the_command_compares_the_committed_probes_with_the_suite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["correlation", str(MINI_DIR), "--probes", str(PROBES), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {"NS", "CS"} <= {row["pattern"] for row in rows} <= {"NS", "CS", "NC", "CC"}  # as records come and go
    assert all(int(row["shared"]) >= 3 for row in rows)
    assert main(["correlation", str(MINI_DIR), "--probes", str(PROBES), "--pattern", "CS"]) == 0
    assert "recall, pairs" in capsys.readouterr().out


def test_what_is_no_table_of_probes_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no table of probes at"):
        read_probes(tmp_path / "probes.csv")
    (tmp_path / "probes.csv").write_text("pattern,attention\nCS,abc\n")
    with pytest.raises(ValueError, match="missing columns: accuracy"):
        read_probes(tmp_path / "probes.csv")
