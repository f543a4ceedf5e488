"""K of a cell: which runs have it, its verdicts, one family of tests per cell, and its marks."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cab.errors import UserError
from cab.records.files import REFERENCE_DIRS
from cab.records.identity import hash_of
from cab.records.record import Status
from cab.results.load import load, load_results
from cab.results.retained import MIN_SEEDS, Judged, baselines_of, gains_of, gains_table, judged, suite_runs, unscored
from cab.results.statistics import Verdict
from cab.results.verdict import frame_of
from tests.helpers.made_records import bundled
from tests.helpers.suite_records import CELLS, made_suite as made_suite, seeds, suite_record, value_record, with_config
from tools.validity import simulate_statistics as simulation

ANCHORS = {"vanilla": [100.0, 99.9, 100.1], "none": [0.0, 0.1, -0.1]}
SOLVED = [100.0, 99.0, 100.0]


def verdicts(**points: list[float]) -> dict[str, Judged]:
    return judged(ANCHORS | points)


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        ([60.0, 61.0, 62.0], Verdict.WORSE),
        ([97.0, 97.1, 97.2], Verdict.WORSE),
        ([98.1, 98.2, 98.3], Verdict.SOLVED),
        ([60.0, 90.0, 94.0], Verdict.UNDECIDED),
        ([97.0, 100.0, 100.0], Verdict.UNDECIDED),
        ([110.0, 111.0, 112.0], Verdict.BETTER),
        ([103.0, 100.0, 112.0], Verdict.SOLVED),
        (SOLVED, Verdict.SOLVED),
        ([100.0] * 5, Verdict.SOLVED),
        ([*SOLVED, 99.5, 99.0], Verdict.EQUIVALENT),
        ([*SOLVED, 99.5], Verdict.SOLVED),
        ([99.0], Verdict.ONE_SEED),
    ],
)
def test_a_verdict_agrees_with_its_bound(points, verdict):
    found = verdicts(mine=points)["mine"]
    assert found.verdict is verdict
    assert (found.bound < 98) == (verdict is Verdict.WORSE)
    assert math.isnan(found.bound) == (verdict is Verdict.ONE_SEED)


def test_the_variance_is_that_of_the_seeds_and_of_the_anchors():
    """By the delta method for (x - none) / (vanilla - none)."""
    points, anchors = [60.0, 61.0, 65.0], {"vanilla": [96.0, 100.0, 104.0], "none": [-1.0, 0.5, 0.5]}
    weighted = [(1, points), (0.62, anchors["vanilla"]), (1 - 0.62, anchors["none"])]
    parts = [weight**2 * np.var(own, ddof=1) / 3 for weight, own in weighted]
    error, degrees = math.sqrt(sum(parts)), sum(parts) ** 2 / sum(part**2 / 2 for part in parts)
    found = judged({**anchors, "mine": points})["mine"]
    assert found.total.value == pytest.approx(62)
    assert found.interval == pytest.approx([62 + sign * stats.t.ppf(0.975, degrees) * error for sign in (-1, 1)])
    assert found.bound == pytest.approx(62 + stats.t.ppf(0.95, degrees) * error)


def test_tuned_attentions_are_a_family_of_their_own():
    known = {"abc": [84.0, 86.0, 88.0], "linear": [10.0, 11.0, 12.0]}
    many = {f"abc{number}(tuned)": known["abc"] for number in range(5)}
    before, after = (verdicts(**points) for points in (known, known | many))
    assert {name: after[name] for name in known} == {name: before[name] for name in known}
    assert after["abc0(tuned)"].bound > after["abc"].bound


def test_own_results_do_not_change_other_verdicts():
    """Each own attention joins the family of the reference alone, instead of a reference of its name."""

    about = {"task": "probe", "backbone": "mixer", "pattern": "CS", "reason": "", "program": "", "status": ""}
    about |= {"value": 0.5, "steps": math.nan, "unfinished": False, "diverged": False, "slots": "", "verified": "yes"}
    known = {f"a{n}": [8.0 * n, 8.0 * n + 0.5, 8.0 * n + 1] for n in range(1, 11)}
    mine = {"mine": [60.0, 90.0, 94.0], "a1": [50.0, 51.0, 52.0]}
    runs = [
        {**about, "source": source, "attention": name, "label": name, "seed": seed, "K": k}
        for source, points in (("reference", ANCHORS | known), ("own", mine))
        for name, own in points.items()
        for seed, k in enumerate(own)
    ]
    found = gains_of(pd.DataFrame(runs)).set_index(["source", "attention"])
    own, alone = found.loc["own"], verdicts(**known)
    assert own["verdict"].to_dict() == {"mine": Verdict.UNDECIDED, "a1": Verdict.WORSE}
    assert own.loc["a1", "bound"] == verdicts(**known | {"a1": mine["a1"]})["a1"].bound
    assert own.loc["mine", "bound"] == verdicts(**known, mine=mine["mine"])["mine"].bound
    assert {name: found.loc[("reference", name), "bound"] for name in known} == {n: alone[n].bound for n in known}


@pytest.mark.parametrize(("seeds", "most"), [(3, 0.0), (MIN_SEEDS - 1, 0.0), (14, 0.07)])
def test_a_learner_that_solves_by_chance_is_not_equivalent(seeds, most):
    """If all of 14 seeds solve a cell, the one-sided 95% bound of the chance to solve it is above 0.8."""
    random = np.random.default_rng(2)
    assert simulation.equivalent_share(0.8, seeds, 200, random) <= most


def scored(runs: pd.DataFrame) -> dict[str, int]:
    """Number of seeds with a score, without the anchors."""
    own = runs[(runs["reason"] == "") & ~runs["attention"].isin(["vanilla", "none"])]
    return own.groupby("attention").size().to_dict()


def reasons(runs: pd.DataFrame) -> dict[str, str]:
    """Why attentions have a seed without a score."""
    return dict(unscored(runs)[["attention", "reason"]].itertuples(index=False, name=None))


@pytest.mark.usefixtures("made_suite")
def test_runs_with_other_settings_have_no_score():
    """A tuned learning rate is not another setting, nor is a newer option with its default."""
    changes = {
        "same": {"trainer": {"newer": 1, "batch_size": 32, "learning_rate": 0.003}},
        "short": {"trainer": {"max_steps": 9}, "backbone": {"embed_dim": 6}},
        "rate": {"trainer": {"learning_rate": 0.7}},
        "tuned": {"trainer": {"learning_rate": 0.7}, "tuning": {"seed": 1000, "grid": []}},
        "others": {"other_attention": "linear"},
        "newer": {"trainer": {"newer": 1}},
    }
    records = [suite_record("lstf", name, 80, config=groups) for name, groups in changes.items()]
    defaults = {name: value for name, value in records[0].changed.items() if name != "trainer.newer"}
    records[0] = dataclasses.replace(records[0], changed=defaults, hash=hash_of(defaults))
    records.append(with_config(suite_record("lstf", "lacking", 80), task={"name": "lstf"}))
    runs = suite_runs(frame_of(records))
    start = "seed 1 has other settings than the suite's: "
    assert scored(runs) == {"same": 1, "tuned": 1}
    assert reasons(runs) == {
        "short": start + "backbone.embed_dim=6, trainer.max_steps=9",
        "rate": start + "trainer.learning_rate=0.7",
        "others": start + "other_attention=linear",
        "newer": start + "trainer.newer=1",
        "lacking": start + "task.hours=null, task.pred_len=null, task.seq_len=null",
    }


@pytest.mark.usefixtures("made_suite")
def test_anchors_are_frozen():
    """Results of the anchors change no score, and other data than the anchors' are excluded."""
    good = seeds("lstf", "abc", 80)
    strange = [suite_record("lstf", "vanilla", 50, 9), suite_record("lstf", "linear", 80, data={"rows": 3})]
    runs = suite_runs(frame_of([*good, *strange]))
    assert reasons(runs) == {"linear": "seed 1 has data or a version of the task other than the anchors'"}
    gains = gains_table(frame_of([*good, *strange]))
    pd.testing.assert_frame_equal(gains[gains["seeds"] > 0], gains_table(frame_of(good)))
    assert baselines_of(suite_runs(frame_of(strange[:1])), "mse") == {"ridge": 0.7}, "also of an anchor"


def test_softmax_attention_of_other_code_is_scored(tmp_path):
    """Also without the reference results: an anchor is one by its code."""
    record = bundled(REFERENCE_DIRS[0], task="lm", pattern="CS", attention="vanilla")
    dataclasses.replace(record, attention_code="a36d8c3e" * 2).write(tmp_path)
    assert set(load_results(tmp_path)["reason"]) == {""}
    for with_reference in (False, True):
        gains = gains_table(load(tmp_path, with_reference=with_reference).frame).query("source == 'own'")
        assert gains[["attention", "seeds", "verdict"]].to_numpy().tolist() == [["vanilla [a36d8c3e]", 1, "one seed"]]
        assert gains["K"].item() == pytest.approx(100, abs=5)


def test_a_cell_without_anchors_has_no_score(monkeypatch):
    record = suite_record("lm", "abc", 80)
    monkeypatch.setattr("cab.results.cells.read_anchors", dict)
    assert reasons(suite_runs(frame_of([record]))) == {"abc": "the cell has no anchors"}


@pytest.mark.usefixtures("made_suite")
def test_a_copy_counts_once_and_two_results_of_one_seed_are_refused():
    record = suite_record("lm", "abc", 80)
    assert scored(suite_runs(frame_of([record, record]))) == {"abc": 1}
    with pytest.raises(UserError, match="two results of abc with seed 1 in lm gpt2 CS"):
        suite_runs(frame_of([record, suite_record("lm", "abc", 70)]))


@pytest.mark.usefixtures("made_suite")
@pytest.mark.parametrize("status", ["diverged", "NaN, inf or overflow"])
def test_a_seed_without_a_score_leaves_no_k_and_is_counted(status):
    lost = value_record(CELLS["lstf"], "abc", math.nan, 3)
    if status == "diverged":
        lost = dataclasses.replace(lost, status=Status.DIVERGED)
    others = [suite_record("lstf", "abc", 50), suite_record("lstf", "abc", 51, 2)]
    [gain] = gains_table(frame_of([*others, lost])).query("attention == 'abc'").itertuples()
    assert (gain.seeds, gain.verdict, gain.note) == (0, "", f"1 of 3 without a score ({status})")
    assert all(map(math.isnan, (gain.K, gain.mean, gain.bound)))
    again = frame_of([*others, lost, suite_record("lstf", "abc", 50, 3)])
    assert reasons(suite_runs(again)) == {}, "the seed has another run"
    assert gains_table(again).query("attention == 'abc'")["seeds"].tolist() == [3]
    [gain] = gains_table(frame_of([lost])).query("attention == 'abc'").itertuples()
    assert gain.note.startswith("seed 3 ")


@pytest.mark.usefixtures("made_suite")
@pytest.mark.parametrize(
    ("k", "changes", "note"),
    [
        (90, {"unfinished": True}, "unfinished"),
        (90, {"unfinished": True, "diverged": True}, "diverged"),
        (99, {"unfinished": True}, ""),
        (90, {"slots": "4 slots for 64 facts"}, "few slots"),
    ],
)
def test_a_lower_bound_is_below_the_ceiling_and_did_not_diverge(k, changes, note):
    runs = suite_runs(frame_of(seeds("lstf", "abc", k)))
    [found] = gains_of(runs.assign(**changes)).query("attention == 'abc'")["note"]
    assert found == note
