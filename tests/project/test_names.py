"""The public names of ``cab`` resolve lazily, are typed and documented, and are all that documents import."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

import cab
from tests.helpers.documents import committed

ROOT = Path(__file__).resolve().parents[2]
PAGES = committed("README.md", "CONTRIBUTING.md", "docs/**/*.md")


def imported_by_type_checkers() -> dict[str, str | None]:
    """Name and module of each import in the block ``if TYPE_CHECKING`` of cab/__init__.py."""
    [block] = [node for node in ast.parse(Path(cab.__file__).read_text()).body if isinstance(node, ast.If)]
    found = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert all(alias.asname == alias.name for node in found for alias in node.names)  # else it is not exported
    return {alias.name: node.module for node in found for alias in node.names}


def test_names_are_what_type_checkers_see() -> None:
    assert imported_by_type_checkers() == cab._EXPORTS
    for name, module in cab._EXPORTS.items():
        assert getattr(cab, name) is getattr(importlib.import_module(module), name)


def test_names_that_do_not_exist_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'cab' has no attribute 'Attentions'"):
        _ = cab.Attentions


def test_names_are_documented() -> None:
    reference = (ROOT / "docs/reference/python.md").read_text()
    named = re.findall(r"^(?:def |class )?(\w+)(?:\(|:$| = dict)", reference, flags=re.MULTILINE)
    assert set(cab.__all__) <= set(named)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_documents_import_from_cab_alone(page: Path) -> None:
    """Contract modules below ``cab`` may move; the names in ``cab`` stay."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    public = {"cab", "cab.testing", *(f"cab.{name}" for name in cab.__all__)}
    names = re.findall(r"^ *(?:from|import) (cab[\w.]*)", "\n".join(blocks), flags=re.MULTILINE)
    assert [name for name in names if name not in public] == []
