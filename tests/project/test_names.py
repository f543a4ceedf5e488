"""The public names of ``cab`` resolve lazily, are typed and documented, and are all that documents import."""

import ast
import functools
import importlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import cab
from tests.helpers.documents import ROOT, committed

CHECKED = ("attentions", "cab/verification")
"""Packages whose code `cab verify` has checked: a constant of one module may have the name of another's."""
PACKAGES = ("attentions", "backbones", "cab", "cab_fairseq", "engines", "tasks")
NOUNS = ("Cell", "Cost", "Row", "Entry", "Subject", "Verdict")
PAGES = committed("README.md", "CONTRIBUTING.md", "docs/**/*.md")


def test_public_names_are_lazy_typed_and_documented():
    """Type checkers see the imports of the block ``if TYPE_CHECKING``, and export those renamed to themselves."""
    [block] = [node for node in ast.parse(Path(cab.__file__).read_text()).body if isinstance(node, ast.If)]
    found = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {alias.asname: node.module for node in found for alias in node.names} == cab._EXPORTS
    for name, module in cab._EXPORTS.items():
        assert getattr(cab, name) is getattr(importlib.import_module(module), name)
    reference = (ROOT / "docs/reference/python.md").read_text()
    assert {*cab.__all__} <= {*re.findall(r"^(?:def |class )?(\w+)(?:\(|:$| = dict)", reference, flags=re.MULTILINE)}


def test_names_that_do_not_exist_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'cab' has no attribute 'Attentions'"):
        _ = cab.Attentions


def test_documents_import_from_cab_alone():
    """Contract modules below ``cab`` may move; the names in ``cab`` stay."""
    blocks = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    public = {"cab", "cab.testing", *(f"cab.{name}" for name in cab.__all__)}
    names = re.findall(r"^ *(?:from|import) (cab[\w.]*)", "\n".join(blocks), flags=re.MULTILINE)
    assert [name for name in names if name not in public] == []


@functools.cache
def statements() -> list[tuple[str, ast.stmt]]:
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return [(str(path.relative_to(ROOT)), node) for path in paths for node in ast.parse(path.read_text()).body]


def definitions(kinds: type | tuple[type, ...], name_of: Callable[[ast.stmt], Iterable[str]]) -> dict[str, list[str]]:
    """The modules in which statements of these kinds at the level of a module define each name."""
    found: dict[str, list[str]] = {}
    for path, node in statements():
        for name in name_of(node) if isinstance(node, kinds) else ():
            found.setdefault(name, []).append(path)
    return found


def targets(node: ast.stmt) -> Iterator[str]:
    """The names of public constants that an assignment defines, without types and those that a protocol names."""
    of = getattr(node, "targets", None) or [getattr(node, "target", None)]
    for each in (each for target in of for each in getattr(target, "elts", [target])):
        if isinstance(each, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]+", each.id) and each.id != "SECTION":
            yield each.id


def test_a_constant_has_one_meaning():
    """No two modules define a constant of the same name, so a name can be read without its module."""
    several = {name: paths for name, paths in definitions((ast.Assign, ast.AnnAssign), targets).items() if paths[1:]}
    assert {name: paths for name, paths in several.items() if not all(path.startswith(CHECKED) for path in paths)} == {
        "SHORTEST": ["cab/flash_linear_attention.py", "cab/verification/growth.py"]  # both are checked code
    }


def test_nouns_are_one_class_and_a_verdict_compares_attentions():
    """Functions, columns and fields of that name are those of :class:`cab.results.statistics.Verdict`."""
    classes = definitions(ast.ClassDef, lambda node: [node.name])  # type: ignore[attr-defined]
    assert {name: len(classes[name]) for name in NOUNS} == dict.fromkeys(NOUNS, 1)
    functions = definitions(ast.FunctionDef, lambda node: [node.name])  # type: ignore[attr-defined]
    paths = {path for name, paths in functions.items() if "verdict" in name for path in paths}
    assert paths == {f"cab/{name}.py" for name in ("cli/score", "results/page", "results/retained", "results/verdict")}
    named = {path for path in committed("cab/**/*.py", "tasks/**/*.py") if re.search(r'"verdict"', path.read_text())}
    assert {path.stem for path in named} == {"formats", "retained", "statistics", "suite_board"}
