"""The board of the suite: its rows, its main sentence, its CSV file and its page."""

import dataclasses

import pandas as pd
import pytest

from cab.registry.registries import ATTENTIONS
from cab.results import page
from cab.results.costs import suite_state, suite_states
from cab.results.figures import frontier
from cab.results.load import load_results
from cab.results.suite_board import families, main_sentence, suite_of
from tests.helpers.suite_records import CELLS, made_suite as made_suite, seeds, suite_record


@pytest.fixture
def folders(made_suite, tmp_path):
    """The reference results, and own ones of two attentions: one in all cells, one with a single seed."""
    own = [run for task in CELLS for run in seeds(task, "mine", 80)]
    own += [suite_record(task, "single", 70) for task in CELLS]
    for record in own:
        record.write(tmp_path / "own")
    return [made_suite, tmp_path / "own"]


def test_the_tables_of_states_and_of_families_are_of_the_registry():
    for name in ("linear", "local", "mla"):
        assert suite_state(ATTENTIONS.get(name)) == suite_states()[name], "run python -m tools.suite.tables"
    assert suite_state(ATTENTIONS.get("linformer")) is None
    assert set(families()) <= set(ATTENTIONS.names())


def test_yours_are_your_records(folders):
    """One own run of abc neither makes the reference results the user's, nor is it averaged or judged with them."""
    suite_record("lstf", "abc", 97, 9).write(folders[1])
    suite = suite_of(load_results(folders))
    [verdict] = page._suite(suite)["own"]["abc"]
    assert verdict.startswith("abc, pattern CS: 1 of 3 core cells")
    assert "periodic copy, lstf informer CS: K 97.0*, not tested\n" in verdict
    rows = suite.board[suite.board["attention"] == "abc"].set_index("own")
    assert rows["CS.periodic_copy.K"].to_dict() == {False: pytest.approx(99.9), True: pytest.approx(97)}
    assert rows["CS.periodic_copy.seeds"].to_dict() == {False: 3, True: 1}


def test_the_main_sentence(folders):
    expected = (
        "Of 3 attentions with a constant-size decode state, 2 are worse than softmax attention in causal recall, 1 "
        "(abc) matches it. Of 64 facts, abc retains 99%, linear retains 95%, local retains 3% (at least 3 seeds each)."
    )
    assert main_sentence(suite_of(load_results(folders))).startswith(expected)


def test_own_rows_that_change_no_sentence(folders):
    """An unverified result, a single seed, a tuned learning rate, and a reference that is trained again."""
    before = main_sentence(suite_of(load_results(folders)))
    records = [*seeds("probe", "rfa(tuned)", 99.9), suite_record("probe", "rfa", 99.9), *seeds("probe", "local", 99)]
    records += [dataclasses.replace(run, verified=False) for run in seeds("probe", "gla", 99.9)]
    for record in records:
        record.write(folders[1])
    suite = suite_of(load_results(folders))
    assert suite.board.set_index("attention")["own"]["rfa"]
    assert main_sentence(suite) == before


def test_the_frontier():
    points = {"fast": (0.1, 50), "slow": (1.0, 100), "worse": (0.2, 40), "equal": (0.1, 30), "best": (0.5, 90)}
    assert frontier(pd.DataFrame(points, index=["cost", "K"]).T) == ["fast", "best", "slow"]
