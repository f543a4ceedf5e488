"""Imports run one way: from the commands down to the contract that a plug-in sees."""

import ast
from collections.abc import Iterator

import pytest

import cab
from tests.helpers.command import ROOT

LAYERS = (
    *("hydra_app", "cli", "efficiency", "analysis", "runner", "results", "pytest_plugin", "testing", "verification"),
    *("data", "config", "records", "registry", "files", "contract", "claims"),
)
"""Packages and modules of `cab`, the highest first; the contract is all other modules at its root."""
PLUG_INS = {
    "engines": "runner",
    "cab_fairseq": "contract",
    "tasks": "results",
    "backbones": "registry",
    "attentions": "registry",
}
"""Packages of plug-ins, the highest first, each with the highest layer of `cab` from which it imports."""
PUBLIC = tuple(f"cab.{name}" for name in cab.__all__)


def layer_of(module: str) -> str:
    """The layer of a dotted name below `cab`."""
    name = module.split(".")[1]
    return name if (ROOT / "cab" / name).is_dir() or name in LAYERS else "contract"


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules that a file imports when it runs, wherever the statement is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from [node.module] if node.module != "cab" else (f"cab.{alias.name}" for alias in node.names)
        yield from imports(node)


@pytest.mark.parametrize("package", ["cab", *PLUG_INS])
def test_imports_lead_down(package):
    """In `cab` to no higher layer and no plug-in; from a plug-in to no higher one, and to public names besides."""
    order, found = list(PLUG_INS), []
    for path in sorted((ROOT / package).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if module == "cab.__init__":
            continue
        highest = LAYERS.index(layer_of(module) if package == "cab" else PLUG_INS[package])
        above = order if package == "cab" else order[: order.index(package)]
        for name in imports(ast.parse(path.read_text())):
            is_public = package != "cab" and name in PUBLIC
            is_up = name.startswith("cab.") and not is_public and LAYERS.index(layer_of(name)) < highest
            if is_up or name.partition(".")[0] in above:
                found.append(f"{module} imports {name}")
    assert found == []
