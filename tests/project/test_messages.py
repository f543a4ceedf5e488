"""Help texts and messages are plain English, by the rules for pages in :mod:`tests.project.test_prose`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.documents import ROOT
from tests.project.test_prose import faults, paragraphs
from tools.site import docs_pages

SOURCES = [
    path
    for folder in ("cab", "attentions", "backbones", "tasks", "engines", "cab_fairseq")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
ALLOWED = {"attentions/adaptive_span.py": "'learnt' or"}
"""Parts of messages that are not checked: a value of option ``position`` of adaptive_span."""


def test_help() -> None:
    """Of every command and subcommand, as on the generated page: in plain English, and on one screen but for run."""
    blocks = re.findall(r"```text\n(.*?)```", docs_pages.commands(), re.DOTALL)
    assert len(blocks) > 15
    screens = [block.splitlines() for block in blocks if not block.startswith("usage: cab run")]
    assert max(map(len, screens)) <= 60
    assert max(len(line) for screen in screens for line in screen) <= 120
    texts = [" ".join(text.split()) for block in blocks for text in re.split(r"\n\s*\n|\n {2,4}(?=\S)", block)]
    prose = [text for text in texts if not text.startswith("usage:") and text.count(",") < len(text.split()) / 2]
    assert [fault for text in prose for fault in faults(text)] == []


def test_checks_and_tables() -> None:
    """Descriptions that generated pages take from the code."""
    rows = [docs_pages.options(section) for section in ("run", "trainer", "local", "slurm")]
    assert [fault for page in rows for paragraph in paragraphs(page) for fault in faults(paragraph)] == []


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each message that a file raises, warns about or logs."""
    for node in ast.walk(ast.parse(path.read_text())):
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if isinstance(node, ast.Raise) or name in ("UserError", "UnsupportedError", "warn", "warning", "info", "error"):
            for argument in call.args:
                yield node.lineno, _text(argument)


def test_no_command_names_a_page_of_the_repository() -> None:
    """An installed package has no folder docs; a guide is named by its title."""
    for path in SOURCES:
        nodes = list(ast.walk(ast.parse(path.read_text())))
        documented = [node.body[0] for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
        is_help = path.parent.name == "cli"  # where the docstring of a module is the text of --help
        docstrings = () if is_help else {id(node.value) for node in documented if isinstance(node, ast.Expr)}
        texts = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        assert [node.value for node in texts if id(node) not in docstrings and "docs/" in node.value] == [], path


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) if isinstance(value, ast.Constant) else "VALUE" for value in node.values)
    return " ".join(_text(child) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.Name))


def test_messages() -> None:
    found = set()
    for path in SOURCES:
        name = str(path.relative_to(ROOT))
        for line, text in messages(path):
            found |= {f"{name}:{line}: {fault}" for fault in faults(text.replace(ALLOWED.get(name, ""), ""))}
    assert sorted(found) == []
