"""ListOps: the distribution of the generator, values by a second evaluator, the official files and their damage."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tasks.lra import listops
from tasks.lra.listops import direct_digits, generated_trees, trees
from tests.helpers.tasks.layouts import TREES, write_trees
from tests.helpers.tasks.records import ready


def value(symbols: Sequence[int]) -> int:
    """By a stack, with the median of the standard library."""
    stack: list[list[int]] = [[]]
    operators = []
    for symbol in symbols:
        if symbol < 10:
            stack[-1].append(symbol)
        elif symbol < listops.CLOSE:
            operators.append(listops.OPERATORS[symbol - 10])
            stack.append([])
        else:
            values = stack.pop()
            known = {"MIN": min, "MAX": max, "MED": statistics.median, "SM": lambda x: sum(x) % 10}
            stack[-1].append(int(known[operators.pop()](values)))
    [[result]] = stack
    return result


def test_values_are_those_of_a_second_evaluator() -> None:
    made = [tree for tree in itertools.islice(trees(np.random.default_rng(3), TREES), 3000) if tree is not None]
    assert len(made) > 300
    for tree in made:
        assert tree.label == value(tree.texts[0])
        assert 5 < len(tree.texts[0]) < 40
    assert listops.apply(12, [9, 2, 3, 2]) == 2  # the mean of 2 and 3, cut


def test_parts_share_no_tree() -> None:
    task = ready("lra")
    texts = {
        split: {task.splits[split].text(row).tobytes() for row in range(len(task.splits[split]))}
        for split in task.splits
    }
    assert [len(texts[split]) for split in ("train", "validation", "test")] == [400, 200, 200]
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["validation"]
    assert not texts["validation"] & texts["test"]
    assert ready("lra", examples=100).fingerprint()["test"] == task.fingerprint()["test"], "whatever trains"


def test_baselines_read_what_they_say() -> None:
    task = ready("lra")
    rows = task.splits["test"]
    right = 0
    for row in range(len(rows)):
        symbols = rows.text(row).tolist()
        depth, digits = 0, []
        for symbol in symbols:
            depth += 10 <= symbol < listops.CLOSE
            depth -= symbol == listops.CLOSE
            if depth == 1 and symbol < 10:
                digits.append(symbol)
        assert direct_digits(rows.text(row)) == digits
        right += bool(digits) and value([symbols[0], *digits, listops.CLOSE]) == int(rows.labels[row])
    found = {name: scores["accuracy"] for name, scores in task.baselines().items()}
    assert 100 * right / len(rows) <= found["root_and_digits"] <= 100 * right / len(rows) + 10
    assert found["majority"] < found["root_operator"] < found["root_and_digits"] < 90


def test_dropped_brackets_are_not_seen_and_what_is_cut_comes_after() -> None:
    kept, dropped = ready("lra"), ready("lra", brackets="dropped")
    assert dropped.config_variant == "brackets dropped"
    assert kept.fingerprint() == dropped.fingerprint()
    symbols = kept.splits["test"].text(0)
    assert dropped.splits["test"].seen(0).tolist() == [symbol for symbol in symbols if symbol != listops.CLOSE]
    assert dropped.baselines() == kept.baselines()
    batch = kept.splits["train"].__getitems__([0, 1, 2])
    longest = max(len(kept.splits["train"].text(row)) for row in range(3))
    assert batch.texts[0].shape == (3, longest)
    for row in range(3):
        ids = batch.texts[0][row]
        assert (ids[ids > 0] - 1).tolist() == kept.splits["train"].text(row).tolist()
    rows = kept.splits["test"]
    rows.length = 7
    assert rows.__getitems__([0, 1]).texts[0].shape == (2, 7)


def test_official_files_are_read(tmp_path: Path) -> None:
    task = ready("lra", write_trees(tmp_path))
    same = generated_trees(TREES, (20, 5, 5))
    for split, examples in same.read():
        rows = task.splits[split]
        found = [(rows.text(row).tobytes(), int(rows.labels[row])) for row in range(len(rows))]
        assert found == [(texts[0], label) for texts, label in examples]
    assert task.backbone_options("encoder") == {
        "vocab_size": 16, "max_length": 39, "num_classes": 10, "pairs": False
    }  # fmt: skip
