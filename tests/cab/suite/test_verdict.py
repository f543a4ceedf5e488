"""The verdict on an attention among results of the suite, and the commands that print it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cab.cli.main import main
from cab.records.record import Record, Status
from cab.records.results import MINI_DIR, load_results, with_reference_results
from cab.suite.results import collect
from cab.suite.verdict import judge_attention
from tests.cab.made_records import COST, make_about
from tests.cab.suite.suite_records import lstf_record

pytestmark = pytest.mark.usefixtures("former_suite")


def lines_of(*mine: Record) -> list[str]:
    """The verdict on ``mine`` in pattern CS, among the bundled results."""
    [verdict] = judge_attention("mine.py:Mine", mine)
    assert verdict.pattern == "CS"
    return [line.strip() for line in verdict.lines]


def record(mse: float, seed: int, **changes: object) -> Record:
    return lstf_record("mine.py:Mine", mse - 0.001 * seed, seed, **changes)


def test_the_newcomers_verdict() -> None:
    lines = lines_of(*(record(mse, seed) for seed, mse in enumerate((0.00684, 0.00705, 0.00710))))
    assert lines[0] == "mine.py:Mine, pattern CS: 1 of 2 core cells, at least 3 seeds per cell; no K without lm gpt2 CS"
    assert "significantly worse than: vanilla" in lines
    assert "gla" in next(line for line in lines if line.startswith("significantly better than: "))
    assert any("error 1.09 times that of vanilla" in line for line in lines)
    assert any(line.startswith("ceiling: in lstf informer CS, 6 of 11 are within 2 points") for line in lines)
    assert "not measured against softmax (`cab efficiency mine.py:Mine --pattern CS`)" in lines[-2]
    assert lines[-1] == "not verified: run `cab verify mine.py:Mine --pattern CS`"


def test_one_seed_is_marked_and_compared_with_nobody() -> None:
    lines = lines_of(record(0.2, 1))
    assert lines[0].startswith("mine.py:Mine, pattern CS: 1 of 2 core cells, at least 1 seed per cell")
    assert not any(line.startswith("significantly") for line in lines)
    assert any("K 72.1*" in line for line in lines)
    assert lines[-1].startswith("* a single seed")


def test_all_core_cells_give_k_and_a_rank() -> None:
    found = load_results(MINI_DIR).drop_duplicates("file")["record"]
    verdict = next(verdict for verdict in judge_attention("abc", found) if verdict.pattern == "CS")
    assert verdict.lines[1].startswith("  K 98.2, 95% [95.1, 100.0]: share of the gain of softmax attention")
    assert verdict.lines[1].endswith("rank 1 to 5 of 7")
    assert verdict.lines[2] == "  solved in 6 of 6 runs; worst cell: lm gpt2 CS, K 96.5"
    assert {row.gain.attention for row in verdict.rows} >= {"abc", "vanilla", "none", "gla"}


def test_without_a_core_cell_the_others_are_compared() -> None:
    found = load_results(MINI_DIR).drop_duplicates("file")["record"]
    verdict = next(verdict for verdict in judge_attention("abc", found) if verdict.pattern == "NS")
    assert verdict.lines[0].startswith("abc, pattern NS: 0 of 2 core cells; no K without")
    assert "  significantly better than: none, local" in verdict.lines
    assert verdict.rows == []


def test_an_unfinished_seed_is_named() -> None:
    about = make_about(dataset="synthetic", pattern="CS", attention="mine.py:Mine", seed=2)
    reason = FloatingPointError("the loss is nan")
    failed = Record.failed(about, status=Status.DIVERGED, error=reason, step=3, cost=COST, metrics=[])
    assert "not scored: lstf informer CS: seed 2 is diverged" in lines_of(record(0.1, 1), failed)


def test_the_report_prints_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (1, 2, 3):
        record(0.2, seed).write(tmp_path)
    assert main(["suite", "report", str(tmp_path), "--attention", "mine.py:Mine"]) == 0
    printed = capsys.readouterr().out
    assert "mine.py:Mine, pattern CS: 1 of 2 core cells" in printed
    assert "error / vanilla" in printed
    assert main(["suite", "report", str(tmp_path), "--attention", "mine"]) == 2
    capsys.readouterr()
    assert main(["suite", "report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("\u2020 mine.py:Mine") == 0


def test_the_leaderboard_shows_them_beside_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record of the same cell and seed is in the place of the one that comes along."""
    field = load_results(MINI_DIR)
    mine = lstf_record("vanilla", 0.5, 1, config_variant="M")
    mine.write(tmp_path)
    beside = with_reference_results(load_results(tmp_path))
    same = beside.query("task == 'lstf' and pattern == 'CS' and attention == 'vanilla' and seed == 1")
    assert set(same["file"]) == {str(tmp_path / f"{mine.hash}.json")}
    assert set(field["attention"]) <= set(beside["attention"])
    assert main(["leaderboard", str(tmp_path), "--with-reference", "--format", "markdown"]) == 0
    assert "| none" in capsys.readouterr().out


def test_the_leaderboard_shows_them_alone_where_nothing_was_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["leaderboard", "--with-reference", "--format", "markdown"]) == 0
    assert "| none" in capsys.readouterr().out
    assert main(["leaderboard", "--format", "markdown"]) == 2


def test_the_records_that_come_along_are_of_the_suite() -> None:
    results = load_results(MINI_DIR)
    assert set(results["dataset"]) == {"synthetic"}
    assert any(cell.runs for cell in collect(results.drop_duplicates("file")["record"]))
    for record in results.drop_duplicates("file")["record"]:
        assert not Path(record.config["results_dir"]).is_absolute(), "a path of the machine that trained it"
        assert " results_dir=/" not in record.command
