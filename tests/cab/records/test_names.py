"""Names of attentions in tables: one name in a place is one program with one setting."""

import dataclasses
from typing import Any

import pytest

from cab.records.names import names_of_programs
from cab.records.record import Record
from tests.helpers.made_records import make_record


def runs_with(*trainers: dict[str, Any], **config: Any) -> list[Record]:
    """One run of ABC per seed, with these settings of the trainer."""
    configs = [{"trainer": trainer, **config} for trainer in trainers]
    return [make_record({"mse": 1.0}, attention="abc", seed=seed, config=of) for seed, of in enumerate(configs, 1)]


RATES = [{"learning_rate": 0.1, "max_steps": 9}] * 2
BOTH = "abc [trainer.learning_rate=0.01, trainer.max_steps=null]"


@pytest.mark.parametrize(
    ("trainers", "config", "names"),
    [
        ([*RATES, {"learning_rate": 0.01, "max_steps": 9}], {}, ["abc", "abc", "abc [trainer.learning_rate=0.01]"]),
        ([*RATES, {"learning_rate": 0.01, "max_steps": None}], {}, ["abc", "abc", BOTH]),
        ([{"learning_rate": 0.1}, {"learning_rate": 0.01}], {"tuning": {"seed": 1000, "grid": []}}, ["abc", "abc"]),
        ([{"micro_batch_size": 1}, {"micro_batch_size": 2}], {}, ["abc", "abc"]),  # of the machine
    ],
)
def test_the_seeds_of_one_mean_share_settings(trainers, config, names):
    assert names_of_programs(runs_with(*trainers, **config)) == names


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("", ["abc", *["abc [trainer.max_steps=4]"] * 2]),  # the default, however many runs have another value
        ("trainer.max_steps=9", ["abc [trainer.max_steps=9]", "abc", "abc"]),
    ],
)
def test_the_bare_name_is_of_the_settings_that_no_command_changed(option, names):
    runs = runs_with(*({"max_steps": steps} for steps in (9, 4, 4)))
    options = [option, *["trainer.max_steps=4"] * 2]
    records = [dataclasses.replace(run, command=f"cab run {of}") for run, of in zip(runs, options, strict=True)]
    assert names_of_programs(records) == names


@pytest.mark.parametrize(("changed", "other"), [({}, "abc"), ({"trainer.newer": 1}, "abc [trainer.newer=1]")])
def test_an_option_that_was_added_since_is_a_setting_of_runs_that_changed_it(changed, other):
    earlier, later = runs_with({"max_steps": 9}, {"max_steps": 9, "newer": 1})
    assert names_of_programs([earlier, dataclasses.replace(later, changed=changed)]) == ["abc", other]


def test_settings_of_other_places_are_not_compared():
    [one] = runs_with({"max_steps": 1})
    other = make_record({"mse": 1.0}, attention="abc", dataset="etth2", config={"trainer": {"max_steps": 2}})
    assert names_of_programs([one, other]) == ["abc", "abc"]


def test_reference_results_keep_their_names(caplog):
    """Their sets differ in settings, which concerns no user."""
    records = [dataclasses.replace(record, is_bundled=True) for record in runs_with({"max_steps": 1}, {"max_steps": 2})]
    [own] = runs_with({"max_steps": 1})
    assert names_of_programs([records[0], own]) == ["abc", f"abc [{own.attention_code[:8]}]"]
    assert names_of_programs(records) == ["abc", "abc [trainer.max_steps=2]"]
    assert not caplog.text
