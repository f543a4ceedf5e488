"""Imports run one way: from the commands down to the contract that a plug-in sees, and never in a circle."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Collection, Iterator
from pathlib import Path

import cab
from tests.helpers.command import ROOT

CONTRACT = "contract"
"""The modules at the root of `cab`."""
LAYERS = (
    "hydra_app",
    "cli",
    "efficiency",
    "analysis",
    "runner",
    "results",
    "pytest_plugin",
    "testing",
    "verification",
    "data",
    "config",
    "records",
    "registry",
    "files",
    CONTRACT,
    "claims",
)
"""Packages of `cab`, the highest first; each imports only from those after it."""


MODULES = ("hydra_app", "pytest_plugin", "testing")
"""Layers of one module."""
PLUG_INS = {
    "engines": "runner",
    "cab_fairseq": CONTRACT,
    "tasks": "results",
    "backbones": "registry",
    "attentions": "registry",
}
"""Packages of plug-ins, the highest first, each with the highest layer of `cab` from which it imports."""
PACKAGES = ("cab", *PLUG_INS)


PUBLIC = tuple(f"cab.{name}" for name in cab.__all__)
"""Public names, which a plug-in imports from `cab` itself."""


def layer_of(module: str) -> str:
    """The layer of a dotted name below `cab`."""
    name = module.split(".")[1]
    return name if (ROOT / "cab" / name).is_dir() or name in MODULES else CONTRACT


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules of `cab` that a file imports when it runs, wherever the statement is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr) or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from [node.module] if node.module != "cab" else (f"cab.{alias.name}" for alias in node.names)
        yield from imports(node)


def upward(root: Path) -> list[str]:
    """Imports that lead from a layer to a higher one."""
    found = []
    for path in sorted((root / "cab").rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        if module == "cab.__init__":
            continue
        for name in imports(ast.parse(path.read_text())):
            if name.startswith("cab.") and LAYERS.index(layer_of(name)) < LAYERS.index(layer_of(module)):
                found.append(f"{module} imports {name}")
    return found


def upward_from_plug_ins(root: Path) -> list[str]:
    """Imports that lead from a plug-in to a higher one, or to a layer of `cab` that it must not know."""
    found = []
    order = list(PLUG_INS)
    for package, highest in PLUG_INS.items():
        allowed = LAYERS[LAYERS.index(highest) :]
        for path in sorted((root / package).rglob("*.py")):
            for name in imports(ast.parse(path.read_text())):
                top = name.partition(".")[0]
                is_up = name.startswith("cab.") and "." in name and layer_of(name) not in allowed
                if (is_up and name not in PUBLIC) or (top in order and order.index(top) < order.index(package)):
                    found.append(f"{path.relative_to(root)} imports {name}")
    return found


def imported_modules(path: Path, modules: Collection[str]) -> Iterator[str]:
    """Those of the modules that a file imports anywhere, also for a type checker alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in inner]
        yield from (name for name in names if name in modules)


def test_every_package_is_a_layer():
    packages = {path.parent.name for path in (ROOT / "cab").glob("*/__init__.py")}
    assert packages == set(LAYERS) - {CONTRACT, *MODULES}


def test_imports_lead_down():
    assert upward(ROOT) == []


def test_imports_of_plug_ins_lead_down():
    assert upward_from_plug_ins(ROOT) == []


def test_efficiency_has_only_the_hardware_from_the_runner():
    trees = {path: ast.parse(path.read_text()) for path in (ROOT / "cab/efficiency").glob("*.py")}
    found = {f"{path.stem} imports {name}" for path, tree in trees.items() for name in imports(tree)}
    assert {text for text in found if "cab.runner" in text} == {
        "benchmark imports cab.runner.provenance",
        "gpu imports cab.runner.provenance",
    }


def test_cab_imports_no_plug_in():
    trees = (ast.parse(path.read_text()) for path in (ROOT / "cab").rglob("*.py"))
    packages = {name.partition(".")[0] for tree in trees for name in imports(tree)}
    assert not packages & set(PACKAGES[1:])


def test_no_modules_import_each_other():
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    del modules["cab"]  # its names are those of the modules that it imports when they are used
    imported = {name: imported_modules(path, modules) for name, path in modules.items()}
    graphlib.TopologicalSorter(imported).prepare()  # raises CycleError
