"""The page: structure, links, escaping; it and other reports replace files when they are complete."""

from __future__ import annotations

import csv
import errno
import io
import itertools
import re
import shutil
from collections import Counter
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from cab.cli.main import main
from cab.files.disk import write_figure
from cab.records.files import REFERENCE_DIRS
from cab.results import figures
from cab.results.leaderboard import index_boards
from cab.results.load import load_results
from cab.results.sections import board_sections
from cab.results.table import write_csv
from tests.helpers.made_records import make_record, number
from tests.helpers.page import Elements, page_of
from tests.helpers.suite_records import CELLS, made_suite as made_suite, seeds, suite_record
from tools.suite.suite_anchors import write_anchors

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(2)>",
    '"><svg onload=alert(3)>',
    "' autofocus onfocus='alert(4)",
    "$\\frac{1}{",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(5)",
    "a\x00b\x1b[31m\u202e\ufffe",
    "]]><!--",
    "mark:x:y:z#&?%2F/..",
    "長い" * 150,
    "one_word_" * 45,
    "=1+1",
    "＝1+1",
    "a\nb\tc",
]


@pytest.fixture(scope="module")
def suite_page(suite_out: Path) -> tuple[str, Elements]:
    page = (suite_out / "index.html").read_text(encoding="utf-8")
    return page, Elements(page)


@pytest.mark.usefixtures("suite_page")
def test_the_table_is_a_csv_file(suite_folder: Path) -> None:
    [board] = index_boards(load_results(suite_folder))
    written = pd.read_csv(suite_folder.parent / "out" / "leaderboard.csv")
    pd.testing.assert_frame_equal(written.fillna({"missing": ""}), board.table, check_dtype=False)


def test_it_is_one_file_whose_names_and_references_hold_together(
    suite_page: tuple[str, Elements], suite_folder: Path
) -> None:
    page, elements = suite_page
    out = suite_folder.parent / "out"
    ids = Counter(attributes["id"] for _, attributes in elements.found if "id" in attributes)
    assert max(ids.values()) == 1
    for tag, attributes in elements.found:
        for name in ("aria-controls", "aria-labelledby", "for"):
            assert attributes.get(name, "main") in {*ids, "main"}, (tag, attributes)
        target = attributes.get("href", "")
        if target.startswith("#"):
            assert target[1:] in ids, (tag, attributes)
        elif tag == "a":
            assert (out / target).is_file(), target
        assert not {"srcset", "action", "data", "poster", "background"} & attributes.keys()
        assert attributes.get("src", "data:").startswith("data:")
    assert [link["href"] for link in elements.of("link")] == ["data:,"]
    assert not re.findall(r"https?://|@import", page)
    policy = next(meta["content"] for meta in elements.of("meta") if "http-equiv" in meta)
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy


def test_a_fold_per_block_and_a_caption_per_table(suite_page: tuple[str, Elements]) -> None:
    page, elements = suite_page
    headings = re.findall(r"<summary><strong>(.*?)</strong></summary>", page)
    assert headings[0] == "causal self-attention (CS)"
    assert "cross-attention (NC)" in headings
    assert len(elements.of("table")) == len(elements.of("caption"))
    assert all(image["alt"] for image in elements.of("img"))
    sortable = [header for header in elements.of("th") if "aria-sort" in header]
    assert {header["aria-sort"] for header in sortable} == {"none"}
    assert page.count("ppl by length, lm / pg19 / gpt2</strong>") == 1
    assert "ppl_256" not in page
    [baseline] = re.findall(r'<tr data-name="repeat_last_value \(trivial baseline\)"[^>]*>(.*?)</tr>', page, re.DOTALL)
    assert re.findall(r"<td[^>]*>([\d.]+)</td>", baseline) == ["2.5", "1.25"]
    row = re.search(r'<tr data-name="abc">.*?data-value="([^"]+)".*?</tr>', page, re.DOTALL)
    assert row is not None
    assert re.search(r"<td[^>]*>[\d.]+ ± [\d.]+</td>", row[0])


def test_names_lead_to_their_summary(suite_page: tuple[str, Elements]) -> None:
    linked = set(re.findall(r'<th scope="row"><a href="#(card-\w+)">', suite_page[0]))
    assert linked == set(re.findall(r'<dt id="(card-\w+)">', suite_page[0])) >= {"card-vanilla", "card-abc"}
    assert "<dd>Vaswani et al. 2017." in suite_page[0]


@pytest.mark.usefixtures("suite_page")
def test_every_run_is_in_a_csv_file(suite_folder: Path) -> None:
    written = pd.read_csv(suite_folder.parent / "out" / "records.csv")
    results = load_results(suite_folder)
    assert len(written) == len(results)
    assert sorted(written["value"]) == pytest.approx(sorted(results["value"]), rel=1e-12)
    assert {Path(file).stem for file in written["file"]} == {path.stem for path in suite_folder.glob("*.json")}
    assert set(written["revision"]) == {"0123456789abcdef0123"}


def test_generated_data_outside_the_suite_have_metrics_and_no_score(tmp_path: Path) -> None:
    for dataset, seed in itertools.product(("synthetic", "etth1"), (1, 2)):
        make_record({"mse": 0.5 + seed / 10}, preset="paper", dataset=dataset, seed=seed).write(tmp_path)
    boards = index_boards(load_results(tmp_path))
    real, generated = board_sections(boards)
    assert (real.heading, generated.heading) == ("Preset paper (index: official)", "Preset paper, synthetic data")
    assert "no score" in generated.summary
    [[real_table], [table]] = [[t for block in section.blocks for t in block.tables] for section in (real, generated)]
    assert [column.label for column in table.columns][:2] == ["mse", "params, M"]
    assert [column.label for column in real_table.columns][:2] == ["lstf", "mse"]
    assert [cell.text for cell in table.columns[0].cells] == ["0.65 ± 0.071"]


@pytest.mark.usefixtures("made_suite")
def test_cells_of_the_suite_have_no_section_of_an_index(tmp_path: Path) -> None:
    for record in seeds("lstf", "abc", 50):
        record.write(tmp_path)
    boards = index_boards(load_results(tmp_path))
    assert [board.data for board in boards] == ["synthetic"], "in leaderboard.csv"
    assert list(board_sections(boards)) == []


def test_figures_of_the_paper_are_named_where_their_data_are(suite_folder: Path, tmp_path: Path) -> None:
    """The benefit of attention is that of NS, in tasks with results without attention.

    A heat map needs a pair with a correlation: a pair of tasks of NS has one, over three attentions.
    """
    shutil.copytree(suite_folder, tmp_path / "results")
    mlm = {"task": "mlm", "dataset": "pg19", "backbone": "roberta", "config_variant": "", "pattern": "NS"}
    sr = mlm | {"task": "sr", "dataset": "ffhq", "backbone": "sr3"}
    for name, value in (("vanilla", 1.0), ("abc", 2.0), ("local", 4.0), ("none", 3.0)):
        make_record({"ppl": value}, attention=name, **mlm).write(tmp_path / "results")
        if name != "none":
            make_record({"psnr": value, "ssim": value}, attention=name, **sr).write(tmp_path / "results")
    files, texts = {}, {}
    for folder in (suite_folder, tmp_path / "results"):
        [board] = index_boards(load_results(folder))
        [section] = board_sections([board])
        blocks = section.blocks
        files[folder] = {picture.file for block in blocks for picture in block.pictures if picture.file}
        texts[folder] = {block.tables[0].id: block.text for block in blocks if block.text}
    assert files[suite_folder] == {"figure3c-mini-lm/pg19/gpt2-ppl"}
    assert set(texts[suite_folder]) == {"mini-CS-tasks", "mini-NC-tasks", "mini-pattern-correlation"}
    assert set(texts[suite_folder].values()) == {
        "No heat map: no pair has a correlation. The notes of the table say why."
    }
    assert "mini-NS-tasks" not in texts[tmp_path / "results"]
    assert files[tmp_path / "results"] == files[suite_folder] | {"figure3b-mini", "figure4-mini-NS"}
    [benefit] = [block.tables[0] for block in blocks if block.heading == "Index with and without attention (NS)"]
    assert [row.label for row in benefit.rows] == ["mlm"]


@pytest.mark.filterwarnings("error")
def test_hostile_names_are_inert(tmp_path: Path, add: Callable[..., Path]) -> None:
    for name in ["vanilla", *HOSTILE]:
        add({"mse": number(name), f"{name}_512": 1.5}, beside=[f"{name}_512"], attention=name, seed=0, verified=True)
    whole = dict.fromkeys(("task", "dataset", "config_variant", "backbone", "preset", "pattern"), HOSTILE[0])
    for name in ("vanilla", HOSTILE[1]):
        add(
            {HOSTILE[0]: number(name)},
            **whole | {"attention": name},
            verified=True,
            baselines={HOSTILE[1]: {HOSTILE[0]: 1.0}},
            command=HOSTILE[1],
            hardware={HOSTILE[0]: HOSTILE[1]},
        )
    half = add({"mse": 1.5}, attention="half a character: \ud800")
    nested = add({"mse": 1.5}, attention={"name": ["abc"]})
    page, elements = page_of(tmp_path / "results", tmp_path / "out")
    assert half.name in page.partition("Skipped files")[2]
    assert nested.name in page.partition("Skipped files")[2]
    assert elements.of("script") == [{}]
    assert not {"svg", "iframe", "object", "embed", "base"} & {tag for tag, _ in elements.found}
    for _, attributes in elements.found:
        assert not any(name.startswith("on") for name in attributes)
        assert not attributes.get("href", "").startswith("javascript:")
    assert "49" not in [text for tag, text in elements.texts if tag == "th"]
    shown = {text for tag, text in elements.texts if tag == "th"}
    assert {name for name in HOSTILE if name.isprintable()} <= shown
    assert not re.search("[\x00\x1b\u202e\ufffe]", page)


@pytest.mark.filterwarnings("error")
def test_names_change_neither_elements_nor_cells(tmp_path: Path) -> None:
    """In any field, and in the CSV files, where a spreadsheet would execute some."""
    shapes, widths = {}, {}
    for kind, names in {"hostile": HOSTILE, "plain": [f"name{place}" for place in range(len(HOSTILE))]}.items():
        results, out = tmp_path / kind / "results", tmp_path / kind / "out"
        for place, name in enumerate(names):
            for field in ("task", "dataset", "config_variant", "backbone", "attention", "preset"):
                make_record({"mse": number(place, field)}, **{field: name}).write(results)
            make_record({name: number(place), f"{name}_512": 1.2}, dataset="ettm1").write(results)
        _, elements = page_of(results, out)
        shapes[kind] = Counter((tag, *attributes) for tag, attributes in elements.found)
        rows = [
            row
            for path in sorted(out.glob("*.csv"))
            for row in csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
        ]
        widths[kind] = [len(row) for row in rows]
        assert not [cell for row in rows for cell in row if re.match("[=＝@＠]|[-+].*[a-z=]", cell) and cell != "-"]
        assert all(cell.isprintable() for row in rows for cell in row)
    assert shapes["hostile"] == shapes["plain"]
    assert widths["hostile"] == widths["plain"]


def test_the_same_results_give_the_same_bytes() -> None:
    pairs = pd.DataFrame({"a": ["lm"], "b": ["sum"], "pearson": [0.25]})
    one, other = (figures.correlation_figure(pairs, order=["lm", "sum"], title="index") for _ in range(2))
    assert figures.image(one, "index") == figures.image(other, "index")


@pytest.mark.slow
def test_the_page_of_the_reference_results_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page, elements = page_of(REFERENCE_DIRS[0], tmp_path / "out", "--with-reference")
    assert len(page.encode()) < 400_000
    assert len(elements.of("figure")) == 2
    answers = re.findall(r"<dd>(.*?)</dd>", page.partition('<dl class="answers">')[2].partition("</dl>")[0])
    document = (REFERENCE_DIRS[0].parents[1] / "docs" / "results" / "validity.md").read_text()
    for answer in answers:
        plain = re.sub(r"</?strong>", "**", re.sub(r"</?code>", "`", unescape(answer)))
        assert plain in document
    assert len(answers) >= 4


# --- files ------------------------------------------------------------------------------------------------------------


def _write_anchors(path: Path) -> None:
    write_anchors([suite_record(task, name, 0) for task in CELLS for name in ("vanilla", "none")], path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.csv", lambda path: write_csv(pd.DataFrame({"x": [1]}), path)),
        ("a.csv", _write_anchors),
        ("a.png", lambda path: write_figure(Figure(), path)),
        ("a.pdf", lambda path: write_figure(Figure(), path)),
    ],
)
def test_a_file_is_replaced_and_never_truncated(name: str, write: Callable[[Path], object], tmp_path: Path) -> None:
    path, old = tmp_path / name, tmp_path / "old"
    path.write_text("old")
    old.hardlink_to(path)
    write(path)
    assert (old.read_text(), len(path.read_bytes()) > 3) == ("old", True)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([name, "old"])


def test_a_full_disk_leaves_the_old_page(
    add: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    results, page = add({"mse": 1.0}), tmp_path / "out" / "index.html"
    page.parent.mkdir()
    page.write_text("old")
    write_text = Path.write_text

    def fill(path: Path, text: str, **options: str) -> int:
        write_text(path, text[:100], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fill)
    assert main(["leaderboard", str(results.parent), "--out", str(page.parent)]) == 2
    assert "no space left" in capfd.readouterr().err.lower()
    assert page.read_text() == "old"
    assert not list(page.parent.glob(".*"))
