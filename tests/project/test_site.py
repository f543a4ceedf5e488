"""The documentation builds without warnings and network, and its pages match the code."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cab.config.compose import check_overrides
from cab.efficiency.cost import COST_COLUMNS
from cab.files.text_table import read_csv
from tests.helpers.command import run_python
from tests.helpers.documents import ROOT, commands_of, committed
from tools.site import docs_pages

DOCS = ROOT / "docs"
PAGES = committed("docs/**/*.md")
MARKDOWN = committed("docs/**/*.md", "*.md", "results/*/README.md")
NOTEBOOK = DOCS / docs_pages.NOTEBOOK


def name(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    run_python("-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), cwd=ROOT)
    return folder


@pytest.mark.slow
def test_it_builds_and_needs_no_network(site):
    for page in (*PAGES, NOTEBOOK.with_suffix(".md"), DOCS / "contributing.md", DOCS / "changelog.md"):
        html = (site / page.relative_to(DOCS)).with_suffix(".html").read_text()
        assert not re.search(r'<(?:script|img|iframe)[^>]*src="?(?:https?:)?//', html), page
        assert not re.search(r'<link[^>]*rel="?(?:stylesheet|preload|preconnect)"?[^>]*href="?(?:https?:)?//', html)
        assert "--8&lt;--" not in html
    assert 'src="data:image/png' in (site / "tutorials/first-hour.html").read_text()


def test_every_failed_check_of_a_model_type_has_a_cause():
    """And no cause names a type or a check that does not fail."""
    rows = [row for row in read_csv(ROOT / "results" / "model_types.csv") if row["result"] != "holds"]
    failed = {(row["type"], check): row for row in rows for check in row["failed"].split() or [""]}
    assert [pair for pair, row in failed.items() if not docs_pages.causes(row, pair[1])] == []
    for cause in read_csv(docs_pages.FINDS / "causes.csv"):
        for name, pattern in product(cause["types"].split(), cause["checks"].split() or [""]):
            assert any(name == pair[0] for pair in failed), f"{name} fails no check"
            assert any(fnmatch(pair[1], pattern) for pair in failed if pair[0] in cause["types"].split()), pattern


def test_every_generated_part_is_found():
    for page in PAGES:
        assert len(docs_pages.PART.findall(page.read_text())) == page.read_text().count("<!-- generated: ")


@pytest.mark.parametrize("page", [page for page in PAGES if docs_pages.PART.search(page.read_text())], ids=name)
def test_generated_parts_are_current(page):
    """If this fails, run ``python -m tools.site.docs_pages``."""
    assert docs_pages.fill(page.read_text()) == page.read_text()


def anchors(markdown: str) -> set[str]:
    """Return the addresses of the headings of a page, as a repository page and MkDocs form them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", markdown, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_links_work_on_a_repository_page():
    """Without a site: each link names a file of the repository, and a heading in it."""
    pages = {page: page.read_text() for page in MARKDOWN}
    dead = []
    for page, text in pages.items():
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
            file, _, anchor = target.partition("#")
            path = page.parent / file if file else page
            is_there = path.is_file() and (not anchor or anchor in anchors(path.read_text()))
            dead += [] if is_there else [f"{page.relative_to(ROOT)}: {target}"]
    assert dead == []
    assert [page for page, text in pages.items() if "--8<--" in text] == []


def test_result_fields_are_documented():
    documented = set(re.findall(r"`(\w+)`", (DOCS / "reference/result-schema.md").read_text()))
    record = json.loads((ROOT / "results/mini/records.jsonl").read_text().partition("\n")[0])
    assert {*record, *record["cell"], *record["cost"], *record["metrics"][0], *record["history"][0]} <= documented


def header(file: str) -> tuple[str, ...]:
    return tuple((ROOT / file).read_text().partition("\n")[0].split(","))


@pytest.mark.parametrize(
    ("page", "section", "columns"),
    [
        ("leaderboard-columns", "suite.csv", header("tests/golden/output/leaderboard_core_suite.csv")),
        ("leaderboard-columns", "leaderboard.csv", header("results/reproduced/leaderboard.csv")),
        ("measure-cost", "Cost files", COST_COLUMNS),
    ],
)
def test_columns_of_the_documents_are_those_of_the_files(page, section, columns):
    """A name may be a whole column, or a part of columns such as `NS.recall.K`; capitals stand for any name."""
    [path] = DOCS.glob(f"*/{page}.md")
    part = path.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?`) \|", part, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    forms = {name: re.sub(r"[A-Z]{4,}", ".+", name.removesuffix(".…")) for name in named}
    matches = {name: [c for c in columns if re.search(rf"(^|\.){form}($|\.)", c)] for name, form in forms.items()}
    assert [name for name, of_name in matches.items() if not of_name] == []
    assert {*columns} == {column for of_name in matches.values() for column in of_name}


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        if not name(page).startswith(("howto", "tutorials", "index")):
            yield from ((name(page), command) for command in commands_of(page.read_text()) if command)


@pytest.mark.parametrize(("page", "command"), list(commands()))
def test_the_commands_of_reference_pages_exist(page, command):
    """The guides' commands run in tests/project/test_howto.py."""
    program, *words = shlex.split(command)
    assert program in ("cab", "export", "python"), page
    if program == "python":
        assert words[0] == "-m", page
        assert find_spec(words[1]), page
    elif words[0] == "run":
        overrides = [word for word in words[1:] if not word.startswith(("-", "suite=", "tune="))]
        check_overrides(overrides, sweep="-m" in words or any(word.startswith("suite=") for word in words))
    elif program == "cab":
        help_text = docs_pages.output(*(word for word in words[:2] if re.fullmatch("[a-z]+", word)), "--help")
        assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", help_text)), command


@pytest.mark.slow
def test_the_program_of_the_python_page_runs(tmp_path):
    program, *_ = re.findall(r"```python\n(.*?)```", (DOCS / "reference/python.md").read_text(), re.DOTALL)
    check = "assert torch.allclose(step_output, output[:, -1], atol=1e-5)\n"
    run_python("-c", program + check, cwd=tmp_path)


def shown_checks(cell: Any) -> list[str]:
    """What `cab verify` printed in a cell: the same at every time."""
    outputs = cell.get("outputs", []) if "cab verify" in cell.source else []
    return [line for output in outputs for line in output.get("text", "").splitlines() if line]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    """All cells, with fewer training steps."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    shown = [bool(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    for cell in notebook.cells:
        cell.source = cell.source.replace("training_steps = 300", "training_steps = 4")
        cell.source = cell.source.replace("--lengths 256 512 1024 2048", "--lengths 64 128")
    stored = [shown_checks(cell) for cell in notebook.cells]
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [bool(cell.outputs) for cell in code] == shown, "the committed outputs belong to another notebook"
    assert [shown_checks(cell) for cell in notebook.cells] == stored, "run tools/site/notebook.py"
    assert len([output for cell in code for output in cell.outputs if "image/png" in output.get("data", {})]) == 2
    text = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    assert re.search(r"largest difference \d\.\de-0[67]", text)
    assert re.search(r"parameters_learn +FAILED", text)
    assert "no check fails" in text
