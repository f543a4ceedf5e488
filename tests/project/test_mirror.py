"""Tests mirror the packages: tests/PACKAGE/test_MODULE.py or test_MODULE_ASPECT.py tests PACKAGE/MODULE.py."""

from __future__ import annotations

from tests.helpers.command import ROOT
from tests.helpers.committed import committed

OF_ALL = ("project", "golden", "public_numbers", "upstream")
"""Folders of tests that concern the whole project: its documents, and stored or published numbers."""


def test_tests_mirror_the_packages() -> None:
    for test in committed("tests/**/test_*.py"):
        folder = test.parent.relative_to(ROOT / "tests")
        if not str(folder).startswith(OF_ALL):
            package = ROOT / folder
            names = [package.name, *(path.stem for path in package.iterdir())]
            assert any(f"{test.stem}_".startswith(f"test_{name}_") for name in names), test


def test_helpers_are_in_their_folder() -> None:
    for path in committed("tests/**/*.py"):
        folder = str(path.relative_to(ROOT / "tests"))
        is_test = path.name in ("__init__.py", "conftest.py") or path.name.startswith("test_")
        assert is_test or folder.startswith(("helpers", "plugin")), path
