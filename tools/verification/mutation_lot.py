"""Change one expression of an attention at random, and report what notices: ``cab verify --quick``, a test, nothing.

    python -m tools.verification.mutation_lot [--seed SEED]

A mutation is a file of ``attentions``, then a kind of change, then a place, each drawn uniformly. The place lies on a
line that short forward, backward and decoding calls of registered attentions reach. It is made in a copy of the
project, where ``cab verify --quick`` checks up to ``PAIRS`` attention-pattern pairs that reach the line, and, if they
pass, the fast tests that name the module or these attentions run. The rows go to the standard output as CSV. Of each
row that nothing noticed, a maintainer says why the change is equivalent, or writes a check.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("cab", "attentions", "backbones", "tasks", "engines", "configs", "results", "tests", "docs", "pyproject.toml")
COUNT, PAIRS = 60, 3
TIMEOUT = 900.0
"""Seconds after which a mutation counts as noticed: an endless loop."""

Pair = tuple[str, str]
Reached = dict[Path, dict[int, set[Pair]]]


def reached_lines() -> Reached:
    """Return the lines of ``attentions`` that short calls reach, with the pairs that reach them."""
    import torch

    from cab.registry.registries import ATTENTIONS
    from cab.verification import subject_of
    from cab.verification.entries import CHUNKS, FORWARD, STEPS, TRAINING, Call, Setup

    torch.set_num_threads(1)
    lines: Reached = defaultdict(lambda: defaultdict(set))
    folder = str(ROOT / "attentions")
    for entry in ATTENTIONS:
        for pattern in entry.patterns:
            pair = (entry.name, str(pattern))

            def trace(frame: FrameType, event: str, _: Any, pair: Pair = pair) -> Any:
                name = frame.f_code.co_filename
                if not name.startswith(folder):
                    return None
                if event == "line" and frame.f_code.co_name != "<module>":
                    lines[Path(name).relative_to(ROOT)][frame.f_lineno].add(pair)
                return trace

            subject = subject_of(*pair, options={})
            sys.settrace(trace)
            try:
                for one in (FORWARD, TRAINING, STEPS, CHUNKS):
                    if one.supports(subject, "left"):
                        Call.of(subject, Setup(37, batch=3, padding="left", has_dropout=one is TRAINING), one).run()
            finally:
                sys.settrace(None)
    return lines


class Mutation(NamedTuple):
    """A change of one expression."""

    file: Path
    line: int
    kind: str
    before: str
    after: str
    text: str
    pairs: tuple[Pair, ...]


EXCHANGED = ("Lt LtE", "Gt GtE", "Eq NotEq", "Is IsNot", "Add Sub", "Mult Div", "And Or", "BitAnd BitOr")
SWAPS: dict[str, str] = dict(pair.split() for pair in EXCHANGED)
SWAPS |= {after: before for before, after in SWAPS.items()} | {"FloorDiv": "Mult", "Mod": "FloorDiv"}
KINDS = ("argument", "call", "choice", "comparison", "constant", "operator", "sign")


def changed(kind: str, node: ast.AST) -> ast.AST | None:
    """Return a changed copy of an expression, or None if it has nothing of this kind."""

    def swapped(operator: ast.AST) -> Any:
        return getattr(ast, SWAPS[name])() if (name := type(operator).__name__) in SWAPS else None

    match kind, node:
        case "comparison", ast.Compare(left, [first, *rest], comparators) if new := swapped(first):
            return ast.Compare(left, [new, *rest], comparators)
        case "operator", ast.BinOp(left, operator, right) if new := swapped(operator):
            return ast.BinOp(left, new, right)
        case "operator", ast.BoolOp(operator, values):
            return ast.BoolOp(swapped(operator), values)
        case "constant", ast.Constant(bool(value)):
            return ast.Constant(not value)
        case "constant", ast.Constant(int(value)):
            return ast.Constant(value + 1)
        case "constant", ast.Constant((float() | complex()) as value):
            return ast.Constant(value * 1.5)
        case "sign", ast.UnaryOp(_, operand):
            return operand
        case "call", ast.Call(ast.Attribute(ast.Name("torch" | "F" | "math" | "self"))):
            return None
        case "call", ast.Call(ast.Attribute(receiver)):  # x.exp() becomes x
            return receiver
        case "argument", ast.Call(function, arguments, [*named, _]):
            return ast.Call(function, arguments, named)
        case "choice", ast.IfExp(test, body, other):
            return ast.IfExp(test, other, body)
    return None


def draw(generator: random.Random, reached: Reached) -> Mutation:
    """Draw a mutation: a file, a kind, a place."""
    while True:
        file, kind = generator.choice(sorted(reached)), generator.choice(KINDS)
        source = (ROOT / file).read_bytes()
        nodes = [node for node in _code(ast.parse(source)) if node.lineno in reached[file]]
        places = [(node, new) for node in nodes if (new := changed(kind, node))]
        if places:
            node, new = generator.choice(places)
            lines, after = source.splitlines(keepends=True), f"({ast.unparse(new)})"
            start, end = (
                len(b"".join(lines[: line - 1])) + column
                for line, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
            )
            before, text = source[start:end].decode(), (source[:start] + after.encode() + source[end:]).decode()
            pairs = sorted(reached[file][node.lineno])
            chosen = generator.sample(pairs, min(PAIRS, len(pairs)))
            return Mutation(file, node.lineno, kind, before, after, text, tuple(chosen))


def _code(tree: ast.AST) -> Iterator[Any]:
    """Yield the expressions of a module without its annotations."""
    for node in ast.iter_child_nodes(tree):
        hidden: dict[str, Any] = {"annotation": None, "returns": None, "decorator_list": []}
        for name in hidden.keys() & node._fields:
            setattr(node, name, hidden[name])
        if isinstance(node, ast.expr):
            yield node
        yield from _code(node)


def noticed_by(mutation: Mutation, copy: Path) -> str:
    """Return what notices the mutation in a copy of the project: ``quick``, ``tests`` or nothing.

    What fails without the change, too, notices nothing.
    """
    quick = ("-m", "cab", "verify", "--quick", "--fail-fast")
    commands: dict[str, tuple[str, ...]]
    commands = {f"quick ({name} {pattern})": (*quick, name, "--pattern", pattern) for name, pattern in mutation.pairs}
    commands["tests"] = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *_tests(mutation))
    target = copy / mutation.file
    original = target.read_text(encoding="utf-8")
    for what, command in commands.items():
        target.write_text(mutation.text, encoding="utf-8")
        is_noticed = not _passes(command, copy)
        target.write_text(original, encoding="utf-8")
        if is_noticed and _passes(command, copy):
            return what
    return ""


def _tests(mutation: Mutation) -> list[str]:
    """Return the arguments that select the fast tests which name the module or the attentions."""
    module = ".".join(mutation.file.with_suffix("").parts)
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if module in path.read_text(encoding="utf-8")]
    general = [
        ROOT / "tests/public_numbers/test_public_numbers.py",
        *sorted((ROOT / "tests/attentions").glob("test_*.py")),
    ]
    words = {name for name, _ in mutation.pairs} | {path.stem for path in files}
    chosen = [str(path.relative_to(ROOT)) for path in dict.fromkeys((*files, *general))]
    return ["-m", "not slow", "-k", " or ".join(sorted(words)), *chosen]


def _passes(command: Sequence[str], folder: Path) -> bool:
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode in (0, 5)


def main() -> None:
    """Draw the lot and print one row per mutation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    reached, table = reached_lines(), csv.writer(sys.stdout)
    table.writerow(("number", "noticed_by", "file", "line", "kind", "before", "after", "pairs"))
    with tempfile.TemporaryDirectory() as folder:
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, Path(folder) / name)
        for number in range(COUNT):
            mutation = draw(random.Random(f"{options.seed} {number}"), reached)
            pairs = " ".join(map(":".join, mutation.pairs))
            table.writerow((number, noticed_by(mutation, Path(folder)) or "NOTHING", *mutation[:5], pairs))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
