"""Where an attention stands among records of the suite, from records by hand, and the command that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from cab.cli.main import main
from cab.errors import UserError
from cab.records.record import Record, RunMetadata, Status
from cab.records.results import MINI_DIR, load_results, with_reference_results
from cab.reports.leaderboard import score_boards
from cab.reports.markdown import markdown
from cab.reports.sections import suite_section
from cab.suite.cells import collect, suite_cells
from cab.suite.comparison import HEADER, compare_with_reference
from cab.suite.overrides import cell_overrides, suite_sweeps
from tests.cab.made_records import COST, make_about, make_record

FIELD = {"vanilla": 0.02, "linear": 0.4, "local": 0.70, "none": 0.71}


def record(attention: str, mse: float, seed: int, **changes: object) -> Record:
    """Of the suite's LSTF cell of pattern CS; facts told far away cost it nine tenths of the error."""
    mse += 0.001 * seed
    names = {"dataset": "synthetic", "pattern": "CS", "attention": attention, "seed": seed, **changes}
    metrics = {"mse": mse, "mae": mse / 2, "mse_direct": mse / 10, "mse_far": mse * 9 / 10}
    return make_record(metrics, beside=["mse_direct", "mse_far"], baselines={"ridge": {"mse": 0.92}}, **names)


@pytest.fixture
def field(tmp_path: Path) -> Path:
    folder = tmp_path / "field"
    for attention, mse in FIELD.items():
        for seed in (1, 2, 3):
            record(attention, mse, seed).write(folder)
    return folder


def row_of(mine: list[Record], field: Path) -> dict[str, str]:
    [standing] = compare_with_reference(mine, field)
    assert standing.others == len(FIELD)
    assert not standing.left_out
    [row] = standing.rows
    return dict(zip(HEADER, row, strict=True))


@pytest.mark.parametrize(
    ("mse", "rank", "above", "below"),
    [
        (0.01, "1 of 5", "-", "vanilla, linear, local, none"),
        (0.2, "2 of 5", "vanilla", "linear, local, none"),
        (0.9, "5 of 5", "vanilla, linear, local, none", "-"),
    ],
)
def test_an_attention_lands_where_its_scores_put_it(field: Path, mse: float, rank: str, above: str, below: str) -> None:
    row = row_of([record("mine", mse, seed) for seed in (1, 2, 3)], field)
    assert (row["pattern"], row["rank"]) == ("CS", rank)
    assert (row["significantly better"], row["significantly worse"]) == (above, below)
    assert float(row["low"]) < float(row["index"]) < float(row["high"])


def test_with_one_seed_nothing_is_resolved(field: Path) -> None:
    row = row_of([record("mine", 0.2, 1)], field)
    assert (row["low"], row["significantly better"], row["significantly worse"]) == ("-", "-", "-")
    assert row["rank"] == "2 of 5"


def test_the_worst_part_is_named(field: Path) -> None:
    metrics = {"mse": 0.2, "mae": 0.1, "mse_direct": 0.002, "mse_far": 0.6}
    names = {"dataset": "synthetic", "pattern": "CS", "attention": "mine"}
    mine = [make_record(metrics, beside=["mse_direct", "mse_far"], seed=seed, **names) for seed in (1, 2, 3)]
    assert row_of(mine, field)["weakest metric"].startswith("lstf informer mse_far: 7% of")


def test_records_of_the_same_attention_are_no_competitor(field: Path) -> None:
    [standing] = compare_with_reference([record("linear", 0.01, seed) for seed in (1, 2, 3)], field)
    assert standing.others == 3
    assert standing.rows[0][4] == "1 of 4"


def test_cells_that_cannot_be_compared_are_named(field: Path) -> None:
    about: RunMetadata = make_about(dataset="synthetic", pattern="CS", attention="mine", seed=2)
    reason = FloatingPointError("the loss is nan")
    failed = Record.failed(about, status=Status.DIVERGED, error=reason, step=3, cost=COST, metrics=[])
    [standing] = compare_with_reference([record("mine", 0.1, 1), failed, record("mine", 0.1, 1, pattern="NC")], field)
    assert standing.rows == []
    assert standing.left_out == [
        "lstf informer CS: seed 2 is diverged",
        "lstf informer NC: fewer than 3 seeds of none or vanilla",
    ]


def test_what_the_suite_stands_for() -> None:
    assert suite_sweeps(["task=lstf", "attention=abc"]) is None
    sweeps = suite_sweeps(["suite=core", "attention=abc", "pattern=CS,causal_cross", "task=lstf,probe"])
    chosen = [cell for cell in suite_cells() if cell.core and cell.task in ("lstf", "probe")]
    expected = [cell for cell in chosen if cell.pattern in ("CS", "CC")]
    assert sweeps == [[*cell_overrides(cell), "attention=abc", "seed=1,2,3"] for cell in expected]
    assert [sweep[4] for sweep in sweeps] == ["preset=mini"] * 3
    assert len(suite_sweeps(["suite=mini", "attention=abc", "seed=4"]) or []) == len(suite_cells())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["suite=paper", "attention=abc"], "unknown suite 'paper'"),
        (["suite=mini", "attention=abc", "preset=paper"], "sets the preset"),
        (["suite=mini", "attention=abc", "dataset=etth1"], "sets the dataset"),
        (["suite=mini", "pattern=CS"], "requires an attention"),
        (["suite=core", "attention=abc", "task=tts"], "unknown task of suite=core 'tts'"),
    ],
)
def test_a_suite_that_cannot_be(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        suite_sweeps(overrides)


def test_the_command_runs_every_cell_that_the_attention_claims(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "suite=mini", "attention=probsparse", "seed=1", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    commands = [line for line in printed.splitlines() if "cab run" in line]
    assert len(commands) == sum(cell.pattern == "NS" for cell in suite_cells())
    assert all("preset=mini" in line for line in commands)


def test_the_leaderboard_shows_them_beside_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record of the same cell and seed is in the place of the one that comes along."""
    field = load_results(MINI_DIR)
    mine = record("vanilla", 0.5, 1, config_variant="M", data=field[field["task"] == "lstf"]["record"].iloc[0].data)
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


def test_cells_that_fail_are_shown_and_counted_in_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = {("sum", "transformer", "CS"): "its seeds differ", ("lstf", "informer", "NC"): "its seeds differ"}
    monkeypatch.setattr("cab.reports.suites.cells_that_fail", lambda: failing)
    [board] = score_boards(load_results(MINI_DIR), normalization="results")
    assert board.suite.uncounted == ("sum transformer CS is excluded from the index: its seeds differ",)
    assert "sum" not in board.tasks("CS")
    assert {"sum", "lstf", "mlm"} <= set(board.tasks("NS"))
    assert "lstf" in board.tasks("NC"), "the only cell of its pattern: it is averaged with nothing"
    of_cell = board.measured.query("pattern == 'CS' and task == 'sum' and metric == 'rouge2'")
    assert of_cell["value"].notna().all()
    assert {"none", "vanilla"} <= set(of_cell["attention"])
    assert "excluded from the index: its seeds differ" in markdown([board])
    assert "excluded from the index: its seeds differ" in suite_section(board).summary


def test_the_records_that_come_along_are_of_the_suite() -> None:
    results = load_results(MINI_DIR)
    assert set(results["dataset"]) == {"synthetic"}
    assert any(cell.scores for cell in collect(results.drop_duplicates("file")["record"]))
    for record in results.drop_duplicates("file")["record"]:
        assert not Path(record.config["results_dir"]).is_absolute(), "a path of the machine that trained it"
        assert " results_dir=/" not in record.command
