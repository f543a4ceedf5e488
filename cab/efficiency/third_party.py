"""Third-party implementations of the attentions: programs outside this package, listed in an index, none required."""

from __future__ import annotations

import contextlib
import csv
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import torch
from torch import nn

from cab.efficiency.setting import Setting
from cab.efficiency.subjects import AttentionSubject
from cab.errors import UserError
from cab.patterns import Pattern
from cab.registry.files import load_object

CHECKOUT = Path(__file__).resolve().parents[2] / "tools" / "benchmarks" / "third_party"
INDEX_FILE = "index.csv"


@dataclass(frozen=True)
class ThirdPartySubject:
    """A third-party implementation with the options of the attention that it is compared with.

    Attributes:
        program: ``FILE.py:function``, which builds the module from those of ``pattern``, ``embed_dim``, ``num_heads``
            and the options of the attention that it has as arguments. It raises UserError for an unsupported option,
            as does the module for an unsupported length.
        patterns: patterns in which its results are correct.
    """

    attention: AttentionSubject
    name: str
    program: str
    patterns: tuple[Pattern, ...]
    kind: str = "third_party"

    @property
    def label(self) -> str:
        return f"{self.compared_with}@{self.name}"

    @property
    def compared_with(self) -> str:
        """Label of the attention."""
        return self.attention.label

    def build(self, pattern: Pattern, setting: Setting, *, dropout: float = 0.0) -> nn.Module:  # noqa: ARG002
        arguments = {"pattern": pattern, "embed_dim": setting.embed_dim, "num_heads": setting.num_heads}
        arguments |= self.attention.all_options(pattern)
        with contextlib.redirect_stdout(sys.stderr):  # some packages print on import; stdout is for tables
            program = load_object(self.program)
            parameters = inspect.signature(program).parameters
            if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                arguments = {name: value for name, value in arguments.items() if name in parameters}
            return cast("nn.Module", program(**arguments))


def is_installed(module: str) -> bool:
    """Return whether a module, or one inside a package, can be imported."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package
        return False


def find_implementations(
    attentions: Iterable[AttentionSubject], folder: Path = CHECKOUT
) -> tuple[list[ThirdPartySubject], list[str]]:
    """Return the installed implementations of the attentions, and notes on missing ones; UserError without an index."""
    index = folder / INDEX_FILE
    if not index.is_file():
        raise UserError(f"no {INDEX_FILE} in {folder}; pass the folder tools/benchmarks/third_party of the repository")
    rows = [row for row in csv.DictReader(index.open(newline="")) if torch.cuda.is_available() or not row["needs_cuda"]]
    subjects, notes, without = [], [], []
    for attention in attentions:
        implementations = [row for row in rows if row["attention"] == attention.name]
        if not implementations:
            without.append(attention.label)
        for row in implementations:
            if not is_installed(row["module"]):
                notes.append(
                    f"{attention.label}: {row['package']} is not installed; run `pip install {row['package']}`"
                )
                continue
            patterns = tuple(p for p in map(Pattern.parse, row["patterns"].split()) if p in attention.patterns)
            subjects.append(ThirdPartySubject(attention, row["name"], str(folder / row["program"]), patterns))
    notes = list(dict.fromkeys(notes))  # a package may provide several implementations
    if without:
        notes.append(f"no third-party implementation is known for: {', '.join(without)}")
    return subjects, notes
