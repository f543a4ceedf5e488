"""GLUE's files: what is read literally, and what is refused with its file and line."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from cab import UserError
from tasks.glue.tables import LAYOUTS, Examples, find_files, read_table

MNLI = "\t".join(["7", "p", "q", "fiction", "( a )", "( b )", "(X a)", "(X b)", "a", "b", "neutral"])


def table(folder: Path, dataset: str, *lines: str, end: str = "\n", file: str = "train", header: bool = True) -> Path:
    layout = LAYOUTS[dataset]
    first = ["\t".join(layout.columns_of(file))] if layout.has_header and header else []
    path = folder / f"{file}.tsv"
    path.write_bytes("".join(line + end for line in [*first, *lines]).encode())
    return path


def read(folder: Path, dataset: str, *lines: str, **how: str) -> Examples:
    return read_table(table(folder, dataset, *lines, **how), LAYOUTS[dataset])  # type: ignore[arg-type]


def test_each_layout(tmp_path: Path) -> None:
    """A line of each data set, as its official file has it."""
    scores = "0\tmain\tnews\t2012\t17\tnone\tnone\ta\tb\t{}"
    for dataset, line, texts, label in (
        ("cola", "gj04\t0\t*\tThey drank the pub.", ("They drank the pub.",), 0),
        ("sst2", "a smile on your face \t1", ("a smile on your face",), 1),
        ("mrpc", "1\t702876\t702977\ta\tb", ("a", "b"), 1),
        ("qqp", "133273\t213221\t213222\ta ?\tb ?\t0", ("a ?", "b ?"), 0),
        ("mnli", f"{MNLI}\tneutral", ("a", "b"), 1),
        ("qnli", "0\tWhen ?\tIn 1990 .\tnot_entailment", ("When ?", "In 1990 ."), 1),
        ("rte", "0\ta\tb\tentailment", ("a", "b"), 0),
        ("stsb", scores.format("4.250"), ("a", "b"), 4.25),
    ):
        assert read(tmp_path, dataset, line) == Examples([texts], [label]), dataset
    dev = table(tmp_path, "mnli", f"{MNLI}\tneutral\tneutral\tentailment\tneutral\tentailment", file="dev_matched")
    assert read_table(dev, LAYOUTS["mnli"]).labels == [2.0]


def test_quotes_are_letters_and_a_sentence_may_be_empty(tmp_path: Path) -> None:
    lines = ['0\t"a\tb "c" d\tentailment', "1\t'\t\"\tnot_entailment", '2\t"never closed\t\tentailment']
    assert read(tmp_path, "rte", *lines).texts == [('"a', 'b "c" d'), ("'", '"'), ('"never closed', "")]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_end_at_line_feeds_alone(end: str, tmp_path: Path) -> None:
    """A byte order mark, as MRPC's file has, the line separators of Unicode, and no end of the last line."""
    path = table(tmp_path, "mrpc", "1\t1\t2\tone\u2028line\ttwo\x85\x0bparts", "0\t1\t2\tc\td", end=end)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().removesuffix(end.encode()))
    found = read_table(path, LAYOUTS["mrpc"])
    assert found == Examples([("one\u2028line", "two\x85\x0bparts"), ("c", "d")], [1.0, 0.0])


@pytest.mark.parametrize(
    ("dataset", "lines", "message"),
    [
        ("rte", ["0\ta\tb\tentailment", "1\ta\tb"], "line 3: 3 columns, but the official file has 4"),
        ("rte", ["0\ta\tb\tentailment", "", "1\ta\tb\tentailment"], "line 3: 1 columns"),
        ("cola", ["gj04\t1\t\ta", "gj04\t\t*\tb"], "line 2: unknown label '' .known: 0, 1"),
        ("mnli", [f"{MNLI}\tneutral\t\t\t\t"], "line 2: 16 columns, but the official file has 12"),
        ("stsb", ["0\tm\tn\t2012\t17\tx\tx\ta\tb\t5.2"], "line 2: the score must be a number from 0 to 5, got '5.2'"),
        ("stsb", ["0\tm\tn\t2012\t17\tx\tx\ta\tb\tnan"], "line 2: the score must be a number from 0 to 5, got 'nan'"),
        ("sst2", [], "has no example"),
    ],
)
def test_what_is_refused_with_its_line(dataset: str, lines: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, dataset, *lines)
    assert str(tmp_path / "train.tsv") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_headers_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="line 1: expected the column 'sentence1', got 'a'"):
        read_table(table(tmp_path, "rte", "0\ta\tb\tentailment", header=False), LAYOUTS["rte"])
    dev = table(tmp_path, "mnli", f"{MNLI}\tneutral")
    with pytest.raises(UserError, match="line 1: 12 columns, and the header of the official file has 16"):
        read_table(dev.rename(tmp_path / "dev_matched.tsv"), LAYOUTS["mnli"])


def test_the_broken_lines_of_qqp_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path, "qqp", "1\t2\t3\ta\tb\t0", "2\t2\t3\tbroken", "3\t2\t3\tc\td\t1", "4")
    assert found.labels == [0.0, 1.0]
    assert "skipped 2 lines with missing columns, the first is line 3" in caplog.text


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = table(tmp_path, "sst2", "fine\t1")
    path.write_bytes(path.read_bytes() + b"caf\xe9\t0\n")
    with pytest.raises(UserError, match=r"train.tsv, line 3: byte \d+ is not UTF-8"):
        read_table(path, LAYOUTS["sst2"])


def test_where_files_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no train.tsv in glue/CoLA, .*: cab data download cola --data-root"):
        find_files("cola", tmp_path)
    with pytest.raises(UserError, match="needs its files: cab data download cola --data-root FOLDER"):
        find_files("cola", None)
    (tmp_path / "glue_data/MNLI").mkdir(parents=True)
    for file in ("train", "dev_matched"):
        (tmp_path / f"glue_data/MNLI/{file}.tsv").touch()
    with pytest.raises(UserError, match=r"no dev_mismatched.tsv of mnli"):
        find_files("mnli", tmp_path)
