"""Only the sets that results/README.md lists are committed; what a command of a document writes is ignored."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.helpers.command import ROOT
from tests.helpers.committed import committed

WRITES = re.compile(
    r"(?:results_dir=|--(?:out|results-dir|plot|record)[ =])(results/[\w-]+)(?=[/\s`'\"]|$)", re.MULTILINE
)
"""A folder in `results` that a command writes."""


def listed() -> set[str]:
    """The names in the first column of the table of results/README.md, and the README itself."""
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "results/README.md").read_text(), flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)} | {"README.md"}


def test_only_listed_results_are_committed() -> None:
    names = {path.relative_to(ROOT / "results").parts[0] for path in committed("results/**/*", "results/*")}
    assert names == listed()


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="not a checkout")
def test_what_commands_of_documents_write_is_ignored() -> None:
    pages = committed("README.md", "CONTRIBUTING.md", "docs/**/*.md", "scripts/*.sh", "Makefile")
    folders = {"results/demo", "results/local"} | {name for page in pages for name in WRITES.findall(page.read_text())}
    assert len(folders) > 5
    written = {f"{name}/x.json" for name in folders if name.removeprefix("results/") not in listed()}
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "check-ignore", "--no-index", *sorted(written)]
    ignored = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    assert set(ignored) == written


def test_results_name_no_folder_of_a_machine() -> None:
    """An absolute path, as in a message of a library that is installed in an unusual place."""
    tables = [path for path in committed("results/**/*", "results/*") if path.suffix in (".csv", ".json", ".jsonl")]
    found = [path for path in tables if re.search(r"(?:^|[\s('\"=,])/\w+/\w+", path.read_text(), re.MULTILINE)]
    assert found == []
