"""ListOps: the distribution of the generator, values by a second evaluator, the official files and their damage."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cab import UserError
from tasks.lra import listops
from tasks.lra.listops import Shape, direct_digits, generated_trees, read_trees, tree_files, trees
from tasks.lra.task import LongRangeArena

SMALL = Shape(max_depth=4, max_arguments=5, min_length=5, max_length=40)


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


def written(symbols: Sequence[int]) -> str:
    """As the official files have it: every operator takes its arguments one by one, each in parentheses."""
    stack: list[list[str]] = [[]]
    for symbol in symbols:
        if 10 <= symbol < listops.CLOSE:
            stack.append([listops.WORDS[symbol]])
        elif symbol < 10:
            stack[-1].append(listops.WORDS[symbol])
        else:
            text = stack[-1][0]
            for word in [*stack.pop()[1:], "]"]:
                text = f"( {text} {word} )"
            stack[-1].append(text)
    return stack[0][0]


def small_task(**options: object) -> LongRangeArena:
    sizes = {"length": 40, "min_length": 5, "max_depth": 4, "max_arguments": 5, "examples": 400, "test_examples": 200}
    task = LongRangeArena(dataset="listops_synthetic", **{**sizes, **options})
    task.check()
    task.setup(None)
    return task


def test_values_are_those_of_a_second_evaluator() -> None:
    made = [tree for tree in itertools.islice(trees(np.random.default_rng(3), SMALL), 3000) if tree is not None]
    assert len(made) > 300
    for tree in made:
        assert tree.label == value(tree.texts[0])
        assert 5 < len(tree.texts[0]) < 40
    assert listops.apply(12, [9, 2, 3, 2]) == 2  # the mean of 2 and 3, cut


def test_parts_share_no_tree() -> None:
    task = small_task()
    texts = {
        split: {task.splits[split].text(row).tobytes() for row in range(len(task.splits[split]))}
        for split in task.splits
    }
    assert [len(texts[split]) for split in ("train", "validation", "test")] == [400, 200, 200]
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["validation"]
    assert not texts["validation"] & texts["test"]
    assert small_task(examples=100).fingerprint()["test"] == task.fingerprint()["test"], "whatever trains"


def test_baselines_read_what_they_say() -> None:
    task = small_task()
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
    kept, dropped = small_task(), small_task(brackets="dropped")
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


def official(folder: Path, counts: Sequence[int] = (20, 5, 5)) -> Path:
    """The released layout, with made-up trees."""
    folder.mkdir(parents=True)
    source = generated_trees(SMALL, (counts[0], counts[1], counts[2]))
    for split, examples in source.read():
        lines = [f"{written(texts[0])}\t{label}" for texts, label in examples]
        (folder / listops.FILES[split]).write_bytes("\r\n".join([listops.HEADER, *lines, ""]).encode())
    return folder


def test_official_files_are_read(tmp_path: Path) -> None:
    folder = official(tmp_path / "lra_release" / "lra_release" / "listops-1000")
    task = LongRangeArena(dataset="listops", length=39)
    task.setup(tmp_path)
    same = generated_trees(SMALL, (20, 5, 5))
    for split, examples in same.read():
        rows = task.splits[split]
        found = [(rows.text(row).tobytes(), int(rows.labels[row])) for row in range(len(rows))]
        assert found == [(texts[0], label) for texts, label in examples]
    assert task.backbone_options("encoder") == {
        "vocab_size": 16, "max_length": 39, "num_classes": 10, "pairs": False
    }  # fmt: skip
    before = tree_files(folder).key
    assert before == tree_files(folder).key
    (folder / "basic_test.tsv").write_bytes((folder / "basic_val.tsv").read_bytes())
    assert before != tree_files(folder).key


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda lines: ["Source,Target", *lines[1:]], "line 1: expected the header Source, Target"),
        (lambda lines: lines[:1], "has no trees after its header"),
        (lambda lines: [*lines[:2], lines[2].split("\t")[0]], "line 3: expected a tree, a tab and a digit"),
        (lambda lines: [*lines[:2], lines[2] + "7"], "line 3: expected a tree, a tab and a digit, got"),
        (lambda lines: [*lines[:3], lines[3].replace("]", "", 1)], "line 4: unbalanced brackets"),
        (lambda lines: [*lines[:1], "[AVG 1 2 ]\t1"], r"line 2: '\[AVG' is not a digit, operator or bracket"),
        (lambda lines: [*lines[:1], "( )\t1"], "line 2: unbalanced brackets"),
    ],
)
def test_damage_is_named_by_file_and_line(damage: object, said: str, tmp_path: Path) -> None:
    path = official(tmp_path / "listops-1000") / "basic_train.tsv"
    lines = path.read_text().splitlines()
    path.write_bytes("\n".join(damage(lines)).encode("latin-1"))  # type: ignore[operator]
    with pytest.raises(UserError, match=f"basic_train.tsv.*{said}"):
        list(read_trees(path))
    task = LongRangeArena(dataset="listops")
    with pytest.raises(UserError, match=r"basic_train\.tsv"):
        task.setup(tmp_path)
