"""Committed results are those that results/README.md lists, and every file has a reader."""

import re
from collections import defaultdict
from pathlib import Path

from tests.helpers.documents import ROOT, committed

READERS = (".py", ".sh", ".md", ".toml", ".yml", ".yaml", "")  # suffixes of files that can name another
DATA = ("configs/**/*.csv", "results/**/*", "docs/assets/*", "scripts/*", "tests/golden/output/*", "tests/helpers/*.py")


def test_only_listed_results_are_committed():
    """By the first column of the table of results/README.md."""
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "results/README.md").read_text(), flags=re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)} | {"README.md"}
    assert {path.relative_to(ROOT / "results").parts[0] for path in committed("results/**/*", "results/*")} == listed


def test_results_name_no_folder_of_a_machine():
    """An absolute path, as in a message of a library that is installed in an unusual place."""
    tables = [path for path in committed("results/**/*", "results/*") if path.suffix in (".csv", ".json", ".jsonl")]
    assert [path for path in tables if re.search(r"(?:^|[\s('\"=,])/\w+/\w+", path.read_text(), re.MULTILINE)] == []


def test_every_file_is_named_by_another():
    """Data, helpers, scripts and pictures that no program, test or page names are leftovers."""
    named_in: dict[str, set[Path]] = defaultdict(set)
    for path in committed("**/*"):
        if path.suffix in READERS and path.is_file():
            for word in {*re.findall(r"[\w-]+", path.read_text())}:
                named_in[word].add(path)
    files = [path for path in committed(*DATA) if path.name != "README.md"]
    assert [path for path in files if not named_in[path.stem] - {path}] == []
