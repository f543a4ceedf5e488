"""The lot of mutations: a lot is determined by its seed, changes one expression, and says what notices it."""

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from tools.verification import mutation_lot
from tools.verification.mutation_lot import ROOT, Mutation, Reached, draw, noticed_by

PAIR = ("linear", "NS")
FILE = Path("attentions/kernels/token_cache.py")


def test_mutation_changes_one_expression():
    original = (ROOT / FILE).read_text(encoding="utf-8")
    reached: Reached = {FILE: {number: {PAIR} for number in range(1, len(original.splitlines()) + 1)}}
    for number in range(40):
        made, same = (draw(random.Random(f"0 {number}"), reached) for _ in range(2))
        assert made == same
        assert made.text != original
        assert made.text.replace(made.after, made.before) == original.replace(made.after, made.before)
        compile(made.text, str(FILE), "exec")


def test_what_notices_a_mutation(tmp_path, monkeypatch):
    (tmp_path / FILE).parent.mkdir(parents=True)
    shutil.copy(ROOT / FILE, tmp_path / FILE)
    original = (tmp_path / FILE).read_text(encoding="utf-8")
    mutation = Mutation(FILE, 1, "constant", "1", "(2)", "changed", (PAIR,))
    failing, failing_before = set[str](), set[str]()

    def passes(command: Sequence[str], folder: Path) -> bool:
        is_changed = (folder / FILE).read_text(encoding="utf-8") == "changed"
        return command[1] not in (failing if is_changed else failing_before)

    monkeypatch.setattr(mutation_lot, "_passes", passes)
    assert noticed_by(mutation, tmp_path) == ""
    failing.add("pytest")
    assert noticed_by(mutation, tmp_path) == "tests"
    failing.add("cab")
    assert noticed_by(mutation, tmp_path) == "quick (linear NS)"
    failing_before.add("cab")
    assert noticed_by(mutation, tmp_path) == "tests"
    failing_before.add("pytest")
    assert noticed_by(mutation, tmp_path) == ""
    assert (tmp_path / FILE).read_text(encoding="utf-8") == original
