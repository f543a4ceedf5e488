"""Do two sets of results rank attentions alike? By hand, and as the command says."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

from cab.cli.main import main
from cab.records.results import PAPER_DIR
from cab.scoring import rank_agreement
from tests.cab.made_records import make_record

NAMES = ["vanilla", "abc", "local", "linear", "performer", "s4d", "longshort", "cosformer"]


def table(values: list[float], task: str = "lm", pattern: str = "CS") -> pd.DataFrame:
    return pd.DataFrame(
        {"pattern": pattern, "task": task, "attention": NAMES[: len(values)], "index": values, "seeds": 1}
    )


@pytest.mark.parametrize("values", [[3.0, 1.0, 2.0, 5.0], [1.0, 2.0, 4.0, 3.0, 7.0, 5.0, 6.0, 8.0]])
def test_it_is_spearmans_rho(values: list[float]) -> None:
    other = sorted(values)
    [row] = rank_agreement(table(values), table(other, task="LM")).to_dict("records")
    assert row["spearman"] == pytest.approx(stats.spearmanr(values, other).statistic)
    assert row["shared"] == len(values)
    reach = 1.959964 * math.sqrt((1 + row["spearman"] ** 2 / 2) / (len(values) - 3))
    assert math.atanh(row["high"]) - math.atanh(row["spearman"]) == pytest.approx(reach)
    assert row["note"] == ("" if len(values) >= 5 else "inconclusive: only 4 shared attentions")


def test_small_sets_have_an_exact_p_value() -> None:
    """Of 24 orders of four, two are as far from none as the same order: it and its reverse."""
    [row] = rank_agreement(table([1.0, 2.0, 3.0, 4.0]), table([2.0, 3.0, 5.0, 9.0])).to_dict("records")
    assert row["spearman"] == 1.0
    assert row["p_value"] == pytest.approx(2 / 24)
    assert (row["disagree"], math.isnan(row["low"])) == ("", True)


def test_who_disagrees_is_named() -> None:
    [row] = rank_agreement(table([4.0, 3.0, 2.0, 1.0]), table([1.0, 4.0, 3.0, 2.0])).to_dict("records")
    assert row["disagree"] == "vanilla: 1 and 4"


def test_what_is_missing_is_not_ranked() -> None:
    first, second = table([4.0, 3.0, math.nan, 1.0]), table([1.0, 4.0, 3.0])
    [row] = rank_agreement(first, second).to_dict("records")
    assert row["shared"] == 2
    assert math.isnan(row["spearman"])
    assert "at least 3 required" in row["note"]
    assert rank_agreement(first, table([1.0, 2.0], task="sum")).empty


def test_the_command_compares_two_folders_of_different_presets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {
        "task": "lm",
        "dataset": "synthetic",
        "config_variant": "",
        "backbone": "gpt2",
        "pattern": "CS",
        "preset": "mini",
    }
    for place, name in enumerate(["local", "s4d", "abc", "longshort", "performer"]):
        make_record({"ppl": 2.0 + place}, attention=name, **names).write(tmp_path)
    assert main(["correlation", str(tmp_path), str(PAPER_DIR), "--csv"]) == 0
    [row] = [r for r in csv.DictReader(io.StringIO(capsys.readouterr().out)) if r["task"] == "lm"]
    assert (row["pattern"], row["shared"]) == ("CS", "4")
    assert -1 <= float(row["spearman"]) <= 1
    assert main(["correlation", str(tmp_path), str(PAPER_DIR)]) == 0
    assert "spearman" in capsys.readouterr().out
