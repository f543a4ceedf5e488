"""Outlines of classes, which have the options of the classes, or none where the source is not sufficient."""

import dataclasses
from runpy import run_path

import pytest

from cab.registry import outlines
from cab.registry.options import annotations_of
from cab.registry.outlines import outline_of
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS


@pytest.fixture
def outlined(tmp_path, monkeypatch):
    """Let the module ``outlined`` of the folder be one of a plug-in."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(outlines, "packages", lambda: frozenset({"outlined", "cab"}))
    outlines._outline.cache_clear()


OF_SIZE = "class Mine:\n    def __init__(self, *, size: object = SIZE): pass"


@pytest.mark.parametrize("registry", [ATTENTIONS, BACKBONES, TASKS], ids=lambda registry: registry.kind)
def test_an_outline_has_the_options_of_its_class(registry):
    for entry in registry:
        outline = outline_of(entry.location.module, entry.location.qualname)
        assert outline, entry.name
        read = dataclasses.replace(entry, imported=outline)
        assert list(read.options.items()) == list(entry.options.items()), entry.name
        assert {name: read.kinds[name] for name in read.options} == {name: entry.kinds[name] for name in read.options}
        assert read.texts == entry.texts, entry.name


@pytest.mark.parametrize(
    ("source", "is_sufficient"),
    [
        ("import torch\nclass Mine(torch.nn.Module):\n    def __init__(self, *, size: int = 3): pass", True),
        ("SIZES = SMALL, LARGE = 3, 4\nclass Mine:\n    def __init__(self, *, size: int = LARGE): pass", True),
        ("import torch\nclass Mine:\n    def __init__(self, *, size: float = torch.pi): pass", False),
        ("from torch import nn\nclass Mine(nn.Linear): pass", False),
        ("import torch\n@torch.jit.script\nclass Mine:\n    def __init__(self, *, size: int = 3): pass", False),
        ("try:\n    SIZE = 3\nfinally: pass\nclass Mine:\n    def __init__(self, *, size: int = SIZE): pass", False),
        ("def halve(): return SIZE\nSIZE = 3\nclass Mine:\n    size = halve()\n    def __init__(self): pass", True),
        (f"SIZE = 1\nSIZE += 2\n{OF_SIZE}", False),
        (f"SIZE = 1\nif True: SIZE = 2\n{OF_SIZE}", False),
        (f"SIZE = 1\n{OF_SIZE}\nSIZE = 2", False),
        (f"SIZES = {{}}\nSIZES['a'] = 2\nSIZE = len(SIZES)\n{OF_SIZE}", False),
        (f"SIZES = []\nSIZES.append(2)\nSIZE = len(SIZES)\n{OF_SIZE}", False),
        (f"import torch\nSIZE = 2 if torch.cuda.is_available() else 1\n{OF_SIZE}", False),
        (f"import torch\nSIZE = (torch.pi, {{'a': [torch.pi]}})\n{OF_SIZE}", False),
        (f"import torch\nSIZE = f'{{torch.pi}}'\n{OF_SIZE}", False),
        (f"import torch, torch.nn\nimport torch.cuda\nSIZE = 1\n{OF_SIZE}", True),
        ("import torch\nclass Mine:\n    @torch.no_grad()\n    def __init__(self, *, size: int = 3): pass", False),
        ("A = 1\nclass Mine:\n    @classmethod\n    def common_options(cls): return A", False),
    ],
)
@pytest.mark.usefixtures("outlined")
def test_an_outline_never_guesses(source, is_sufficient, tmp_path):
    (tmp_path / "outlined.py").write_text(source)
    assert (outline_of("outlined", "Mine") is not None) == is_sufficient


QUOTED = """
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal
from cab.registry.options import Positive
if TYPE_CHECKING:
    from torch import Tensor
@dataclass(kw_only=True)
class Field:
    kind: "Literal['a', 'b']" = "a"
    number: "ClassVar[int]" = 1
class Argument:
    def __init__(self, *, size: "Positive" = 3, rate: float = 0.1, start: "Tensor | None" = None):
        pass
"""


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
@pytest.mark.usefixtures("outlined")
def test_annotations_in_quotes(future, tmp_path):
    (tmp_path / "outlined.py").write_text(future + QUOTED)
    read = {name: outline_of("outlined", name) for name in ("Field", "Argument")}
    module = run_path(str(tmp_path / "outlined.py"), run_name="cab")  # a module that exists: dataclasses look it up
    for name, outline in read.items():
        assert outline
        assert annotations_of(outline) == annotations_of(module[name])
