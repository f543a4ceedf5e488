"""The site builds, needs no network, and every command and block of its pages works."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.documents import ROOT, commands_of, run, run_shown

PAGES = ("index", "choose", "add", "cluster", "reproduce", "scores")
NOTEBOOK = ROOT / "docs" / "first_hour.ipynb"
FILES = ("cab data download", "cab data verify")
EXAMPLE = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


@pytest.mark.slow
def test_it_builds_and_needs_no_network(tmp_path: Path) -> None:
    process = run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)], ROOT)
    assert process.returncode == 0, process.stderr
    for page in (*PAGES, "notebook", "api", "contributing", "changelog"):
        html = (tmp_path / f"{page}.html").read_text()
        assert not re.search(r'<(?:script|img|iframe)[^>]*src="?(?:https?:)?//', html), page
        assert not re.search(r'<link[^>]*rel="?(?:stylesheet|preload|preconnect)"?[^>]*href="?(?:https?:)?//', html), (
            page
        )
        assert "--8&lt;--" not in html
    assert "class GatedMean" in re.sub("<[^>]+>", "", (tmp_path / "add.html").read_text())
    assert "build_attention" in (tmp_path / "api.html").read_text()
    assert 'src="data:image/png' in (tmp_path / "notebook.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_one_after_another(page: str, tmp_path: Path) -> None:
    commands = commands_of((ROOT / "docs" / f"{page}.md").read_text())
    assert len(commands) >= 2
    assert EXAMPLE is not None
    (tmp_path / "gated_mean.py").write_text(EXAMPLE.group(1))
    shutil.copytree(ROOT / "results" / "paper", tmp_path / "results" / "paper")
    for command in commands:
        if not command.startswith(FILES):
            run_shown(command.replace("DATA", str(tmp_path / "data")), tmp_path)


@pytest.mark.slow
def test_the_commands_that_bring_files_run(samples: Path, tmp_path: Path) -> None:
    """From the samples: no test contacts the official host."""
    commands = [command for page in PAGES for command in commands_of((ROOT / "docs" / f"{page}.md").read_text())]
    commands = [command.replace("DATA", str(tmp_path)) for command in commands if command.startswith(FILES)]
    assert commands
    for command in commands:
        run_shown(command + (f" --from {samples / 'lstf'}" if command.startswith(FILES[0]) else ""), tmp_path)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first cell to its pictures, with fewer steps of training."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    shown = [bool(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    for cell in notebook.cells:
        cell.source = cell.source.replace("training_steps = 500", "training_steps = 4")
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [bool(cell.outputs) for cell in code] == shown, "the committed outputs are of another notebook"
    pictures = [output for cell in code for output in cell.outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 2
    text = "".join(output.get("text", "") for cell in code for output in cell.outputs)
    assert re.search(r"largest difference \d\.\de-0[67]", text)
    assert "1 failed: parameters_learn" in text
    assert "checks, 0 failed" in text
