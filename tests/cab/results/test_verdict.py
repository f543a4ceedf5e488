"""The verdict on an attention among results of the suite, and the commands that print it."""

import pytest

from cab.records.record import Record
from cab.results.verdict import frame_of, judge_attentions
from tests.helpers.suite_records import made_suite as made_suite, seeds, suite_record

MINE = "mine.py:Mine"

pytestmark = pytest.mark.usefixtures("made_suite")


def lines_of(*mine: Record) -> list[str]:
    [lines] = judge_attentions([MINE], frame_of(mine))[MINE]
    return [line.strip() for line in lines]


PERIODIC = "periodic copy, lstf informer CS: "


@pytest.mark.parametrize(
    ("shares", "line", "last"),
    [
        ([72.1], "K 72.1*, not tested", "* a single seed"),
        ([100, 100], "2 of 2 solved", ""),
        ([60, 90, 99], "undecided, K 83.0, at most 100.0", "at most: "),  # a bound is at most 100
        ([110, 110.3, 109.7], "better than softmax attention, K 110.0", ""),
    ],
)
def test_the_line_of_a_cell(shares, line, last):
    lines = lines_of(*(suite_record("lstf", MINE, share, seed) for seed, share in enumerate(shares, 1)))
    assert lines[1] == PERIODIC + line
    assert lines[-1].startswith(last)
    assert ("±" in lines[2]) == (len(set(shares)) > 1)


def test_score_prints_verdicts(tmp_path, cab):
    for record in seeds("lstf", "Mine", 80, config={"attention": {"name": MINE}}):
        record.write(tmp_path)
    for name in ("Mine", MINE):
        assert "Mine, pattern CS: 1 of 3 core cells" in cab("score", tmp_path, "--attention", name).out
    cab("score", tmp_path, "--attention", "Min", status=2)


def test_the_table_of_k_has_own_attentions_by_their_k_in_the_first_cell(tmp_path, cab):
    for name, task, share in (("mine", "lstf", 80), ("mine", "lm", 70), ("other", "lstf", 90)):
        for record in seeds(task, name, share):
            record.write(tmp_path)
    _, *rows = (line.split()[:3] for line in cab("score", tmp_path, "--score", "K").out.splitlines())
    own = [["other", "(yours)", "90"], ["mine", "(yours)", "80"]]
    assert rows == [["vanilla", "100", "100"], *own, ["none", "0", "0"]]
