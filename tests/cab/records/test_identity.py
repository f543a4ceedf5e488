"""The identity of a run: what is hashed, and what differs between two runs."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from cab.executed import SOURCES
from cab.records import identity
from cab.records.identity import MOVED, Identity, Program, changed_modules, differences, distinctions, why_not_resumed
from cab.registry.program import can_change_score, digest_now


def test_settings_that_distinguish_the_runs_of_a_cell_are_named():
    runs = [(["abc", "1"], {"seed": 1, "trainer": {"eps": eps}}, ()) for eps in (1, None, 1)]
    other = (["abc", "2"], {"seed": 2, "trainer": {"eps": 3}}, ())
    assert distinctions([*runs, other]) == ["trainer.eps=1", "trainer.eps=null", "trainer.eps=1", ""]


ADDED = (["trainer.added"], ["trainer.added=default", "trainer.added=3"])


@pytest.mark.parametrize(("changed_options", "texts"), [([], ["", ""]), ADDED])
@pytest.mark.parametrize("earlier", [{"eps": 1}, {"eps": 1, "removed": 2}])
def test_an_option_that_a_run_lacks_has_its_default(changed_options, texts, earlier):
    """It was added since or removed; only a run that changed it differs."""
    later = {"eps": 1, "added": 3}
    runs = [((), {"trainer": earlier}, ["trainer.eps"]), ((), {"trainer": later}, ["trainer.eps", *changed_options])]
    assert distinctions(runs) == texts
    assert distinctions(runs[::-1]) == texts[::-1]
    standard, own = identity.flat({"trainer": earlier}), identity.flat({"trainer": later})
    assert identity.differing([(own, changed_options), (standard, ())]) == changed_options


def test_a_hash_does_not_depend_on_whether_the_configuration_was_read_from_json():
    config = {"engine": "torch", "trainer": {"betas": (0.9, 0.999)}, "task": {10: 1, 9: 2}}
    assert len({identity.hash_of(identity.settings(each)) for each in (config, json.loads(json.dumps(config)))}) == 1


def test_only_what_differs_from_the_defaults_is_hashed():
    """So an option can be added without losing a record, and a removed one that had its default leaves it."""
    defaults = {"attention.size": 8, "trainer.betas": (0.9, 0.999)}
    for size, changed in ((8, {}), (9, {"attention.size": 9})):
        config = {"attention": {"name": "abc", "size": size}, "trainer": {"betas": [0.9, 0.999], "log_every": 3}}
        assert identity.changed(identity.settings(config), defaults) == {"attention.name": "abc", **changed}


def recorded(attention: dict[str, Any] | None = None, *, modules: dict[str, str] | None = None) -> Identity:
    """The identity of a run with these options of its attention and modules of the project."""
    config = {"attention": attention or {}, "trainer": {}}
    return Identity.of(config, Program.recorded({}, modules or {}), {}, {})


def test_a_default_that_changed_is_named_and_an_added_option_is_not():
    earlier = recorded({"name": "abc", "size": 8, "removed": 1})
    assert differences(earlier, recorded({"name": "abc", "size": 8, "added": 2})) == {}
    assert differences(earlier, recorded({"name": "abc", "size": 9})) == {"configuration": "attention.size was 8, is 9"}
    renamed = {"attention.slots": "attention.size"}
    now = Identity.of({"attention": {"name": "abc", "slots": 9}, "trainer": {}}, Program(), {}, {}, renamed)
    assert differences(earlier, now) == {"configuration": "attention.size was 8, is 9"}


def test_modules_that_only_one_run_needed_do_not_differ_and_files_of_users_do():
    one, other = {"cab.a": "1", "engines.b": "2"}, {"cab.a": "1", "engines.c": "3"}
    assert changed_modules(one, other) == []
    assert changed_modules(one, {**other, "patch.py": "4"}) == ["patch.py"]
    assert changed_modules(one, {"cab.a": "5"}) == ["cab.a"]


@pytest.mark.parametrize(
    ("name", "change", "is_other"),
    [
        ("cab.runner.processes", "\nMORE = 1\n", True),
        ("cab.runner.processes", "\n# a remark\n", False),
        ("cab.construction", "\nMORE = 1\n", True),
        ("cab.results.index", "\nMORE = 1\n", False),  # computes no score of a run
    ],
)
def test_an_edited_module_of_the_runner_is_another_program(name, change, is_other, monkeypatch):
    """Whether the record has the name of today or one that :data:`MOVED` knows."""
    file = Path(importlib.import_module(name).__file__ or "")
    moved = {old: before for old, (before, new, _) in MOVED.items() if new == name}
    earlier = recorded(modules={name: digest_now(name) or "", "cab.records.record": "1" * 16})
    assert not why_not_resumed(earlier, recorded(modules={name: digest_now(name) or ""}))
    monkeypatch.setitem(SOURCES, str(file), file.read_bytes() + change.encode())
    now = recorded(modules={name: digest_now(name) or ""})
    assert why_not_resumed(earlier, now) == (f"other code of the project ({name})" if is_other else "")
    for old, before in moved.items() if is_other else ():
        assert why_not_resumed(recorded(modules={old: before}), now) == f"other code of the project ({name})"


def test_moved_code_has_a_digest_that_it_had():
    """Each row leads to a module of today that can change a score, and rows of one module agree."""
    after: dict[str, set[str]] = {}
    for before, new, digest in MOVED.values():
        assert can_change_score(new)
        assert digest_now(new) is not None
        assert before != digest
        after.setdefault(new, set()).add(digest)
    assert {len(digests) for digests in after.values()} == {1}


@pytest.mark.parametrize("damaged", [{}, {"program": 3}, {"program": {}, "later": 1}, {"program": {"more": {}}}])
def test_a_damaged_identity_is_none(damaged):
    assert Identity.from_plain(damaged) is None


def test_a_forward_pass_has_the_micro_batch_or_else_the_batch():
    assert identity.forward_batch_size({"trainer": {"batch_size": 8, "micro_batch_size": 2}}) == 2
    assert identity.forward_batch_size({"trainer": {"batch_size": 8, "micro_batch_size": None}}) == 8
    assert identity.forward_batch_size({"trainer": {}}) is None
