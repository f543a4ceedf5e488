"""A score says whether its attention was verified; one of a file is trained like any other."""

import csv
from pathlib import Path

import pytest

from cab.records.record import Record, Status
from cab.records.verified import UNVERIFIED_LEGEND, VerifiedRow, remembered, write_rows
from cab.registry.files import load_object
from cab.registry.program import code_of
from cab.registry.registries import ATTENTIONS
from cab.results.load import load_results
from cab.results.summarize import verification_notes, worst_verified
from tasks.lstf.task import error_sums
from tests.helpers.made_records import make_record
from tests.helpers.runs.fixtures import quick_pictures as quick_pictures

LEAKING = """
from cab import Attention

class Leaking(Attention):
    def attend(self, query, key, value, padding):
        return value + value.mean(2, keepdim=True)
"""
REWRITING = """
from cab import Attention
import tasks.lstf.task as lstf
error_sums = lstf.error_sums

class Rewriting(Attention):
    def attend(self, query, key, value, padding):
        lstf.error_sums = lambda forecast, truth: error_sums(truth, truth)
        return value
"""
RUN = ["run", "task=lstf", "dataset=synthetic", "backbone=informer", "pattern=CS", "preset=smoke", "device=cpu"]
RUN += ["logger=csv", "trainer.max_steps=1", "trainer.validate_every=1", "results_dir=results"]

pytestmark = pytest.mark.usefixtures("registers")


@pytest.fixture(autouse=True)
def _here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CAB_CACHE", str(tmp_path / "cache"))


def remember(cls: type) -> None:
    """As if the class had passed."""
    remembered().parent.mkdir(exist_ok=True)
    write_rows(remembered(), [VerifiedRow.of_today("any", "CS", cls, quick=False, reach={})])


def test_a_leak_that_is_trained_is_marked_wherever_its_score_is_shown(cab):
    Path("leaking.py").write_text(LEAKING)
    remember(ATTENTIONS.get("linear").cls)
    out, err = cab(*RUN, "-m", "attention=leaking.py:Leaking")
    assert [line for line in err.splitlines() if "verify" in line] == [
        "Leaking (CS) has not passed `cab verify`; its scores will be marked †. "
        "Run: `cab verify leaking.py:Leaking --pattern CS`",
        UNVERIFIED_LEGEND,
    ]
    assert "† Leaking" in out
    assert "† linear" not in cab(*RUN, "-m", "attention=linear").out

    records = {r.cell["attention"]: r for r in map(Record.read, Path("results").glob("*.json"))}
    leaking, linear = records["Leaking"], records["linear"]
    assert (leaking.verified, linear.verified) == (False, True)
    assert leaking.attention_code == code_of(load_object("leaking.py:Leaking"))
    assert linear.attention_code == code_of(ATTENTIONS.get("linear").cls)

    cab("leaderboard", "results", "--out", "board")
    rows = csv.DictReader(Path("board/leaderboard.csv").read_text().splitlines())
    assert {row["attention"]: row["verified"] for row in rows} == {"Leaking": "no", "linear": "yes"}
    page = Path("board/index.html").read_text()
    assert page.count(">† Leaking<") == 1
    assert page.count(UNVERIFIED_LEGEND) == 1, "in the legend"
    out, err = cab("score", "results")
    assert "† Leaking" in out
    assert "† linear" not in out
    assert f"note: {UNVERIFIED_LEGEND}" in err
    remember(load_object("leaking.py:Leaking"))  # verified later
    assert "†" not in "".join(cab("score", "results"))


def test_a_run_fails_whose_attention_changes_how_everything_is_scored(monkeypatch, cab):
    monkeypatch.setattr("tasks.lstf.task.error_sums", error_sums)  # restored after the test
    Path("rewriting.py").write_text(REWRITING)
    printed = cab(*RUN, "attention=rewriting.py:Rewriting", status=1)
    assert "the scores of the trivial baselines changed during the run" in printed.err
    (path,) = Path("results").glob("*.json")
    assert Record.read(path).status is Status.FAILED


def test_a_row_is_as_verified_as_the_least_of_its_runs(tmp_path):
    said = {"a": [True, True], "b": [True, False], "c": [None], "d": [None, False]}
    for attention, states in said.items():
        for seed, verified in enumerate(states):
            about = {"verified": verified, "attention_code": "" if attention == "c" else "of a made program"}
            make_record({"mse": 1.0}, attention=attention, seed=seed, **about).write(tmp_path)
    results = load_results(tmp_path)
    found = {attention: verdict for (_, attention), verdict in worst_verified(results).items()}
    assert found == {"a": "yes", "b": "no", "c": "unknown", "d": "no"}
    assert verification_notes(results) == [UNVERIFIED_LEGEND, "the results do not record whether these are verified: c"]
    assert verification_notes(results[results["attention"] == "a"]) == []
    assert verification_notes(results.assign(source="published")) == []
