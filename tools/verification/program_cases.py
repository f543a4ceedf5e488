"""The changes of a program that :mod:`tools.verification.program_changes` makes, and the outcome that each must have."""

# ruff: noqa: E501
from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CELL = ["task=lstf", "dataset=synthetic", "backbone=informer", "pattern=NC", "preset=smoke", "device=cpu"]
MINE = """
import torch
from cab import Attention
{imports}

class Mine(Attention):
    def attend(self, query, key, value, *_):
        return {factor} * value.mean(2, keepdim=True).expand_as(query)
"""


@dataclass(frozen=True)
class Change:
    """A change of a program.

    Attributes:
        files: files of the user before the change; ``user.py`` has class ``Mine``. Without any, the attention is abc.
        edits: old and new text by file; a path in this project starts with one of its packages.
        act: what the changed process does first, with the folder of the user.
        expected: ``seen``, ``declared`` as not seen, or the ``same`` program.
        pool: run the pool in addition, which takes a process of its own.
    """

    name: str
    files: Mapping[str, str] = field(default_factory=dict)
    edits: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    act: Callable[[Path], object] | None = None
    before: Callable[[Path], object] | None = None
    expected: str = "seen"
    pool: bool = False
    overrides: tuple[str, ...] = ()


def mine(imports: str = "", factor: str = "1.0") -> str:
    """Return the source of a user's file."""
    return MINE.format(imports=imports, factor=factor)


def helper(name: str, imports: str, factor: str = "SCALE", **more: Any) -> Change:
    """Return a change of SCALE in helper.py, which the user's file gets with ``imports``."""
    files = {"user.py": mine(imports, factor), "helper.py": "SCALE = 1.0\n"}
    return Change(name, files, {"helper.py": ("1.0", "2.0")}, **more)


def lines(source: str) -> str:
    """Return an attention whose ``forward`` begins with a statement that binds SCALE."""
    return mine().replace("        return 1.0", f"        {source}\n        return SCALE")


def zipped(folder: Path, scale: str) -> None:
    import zipfile

    with zipfile.ZipFile(folder / "lib.zip", "w") as archive:
        archive.writestr("zipped_helper.py", f"SCALE = {scale}\n")
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()


def compiled(folder: Path, scale: str) -> None:
    import py_compile

    (folder / "source.txt").write_text(f"SCALE = {scale}\n")
    py_compile.compile(str(folder / "source.txt"), cfile=str(folder / "bare.pyc"))


def installed(folder: Path, scale: str) -> None:
    """Install a package, which registers an attention, in a folder of PYTHONPATH."""
    package = folder / "site-packages" / "plug"
    package.mkdir(parents=True, exist_ok=True)
    info = package.parent / "plug-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[cab.attentions]\nplug = plug\n")
    (package / "__init__.py").write_text("")
    (package / "scale.py").write_text(f"SCALE = {scale}\n")
    register = "from cab import register_attention\nfrom plug.scale import SCALE\n"
    decorator = '@register_attention("plugged", patterns="NC NS", complexity="n", paper="-")\nclass Plugged'
    (package / "mine.py").write_text(mine(register, "SCALE").replace("class Mine", decorator))
    sys.path.insert(0, str(package.parent))
    os.environ["PYTHONPATH"] = f"{package.parent}:{os.environ['PYTHONPATH']}"
    importlib.invalidate_caches()


def library(folder: Path, scale: str) -> None:
    """Write a module in site-packages that does not belong to a plug-in."""
    (folder / "site-packages").mkdir(exist_ok=True)
    (folder / "site-packages" / "scales.py").write_text(f"SCALE = {scale}\n")
    sys.path.insert(0, str(folder / "site-packages"))


def linked(folder: Path, scale: str) -> None:
    (folder / "elsewhere").mkdir(exist_ok=True)
    (folder / "elsewhere" / "linked_helper.py").write_text(f"SCALE = {scale}\n")
    if not (folder / "links").exists():
        (folder / "links").symlink_to("elsewhere")
    sys.path.insert(0, str(folder / "links"))


def customized(folder: Path, scale: str) -> None:
    (folder / "sitecustomize.py").write_text(f"import torch\ntorch.Tensor.scale = {scale}\n")
    sys.modules.pop("sitecustomize", None)
    sys.path.insert(0, str(folder))
    importlib.import_module("sitecustomize")


def run_other(name: str) -> Callable[[Path], object]:
    def act(folder: Path) -> None:
        from cab.runner.run import run_cell

        run_cell(configuration(name, folder / "other", 7))

    return act


def verify(folder: Path) -> None:  # noqa: ARG001
    from cab.cli.main import main

    main(["verify", "local", "--pattern", "NC", "--quick"])


def import_all(folder: Path) -> None:  # noqa: ARG001
    from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS

    for registry in (ATTENTIONS, BACKBONES, TASKS):
        registry.load()


def edit_later(folder: Path) -> None:
    """Edit the file after its import and before the run, which executes what was imported."""
    from cab.registry.files import load_object

    load_object(f"{folder / 'user.py'}:Mine")
    (folder / "user.py").write_text(mine(factor="3.0"))


PLAIN = {"user.py": mine()}
EXEC = "import pathlib\nexec((pathlib.Path(__file__).parent / 'helper.py').read_text())"
BRANCH = "import os\nif os.environ.get('NEVER_SET'):\n    from one import SCALE\nelse:\n    from two import SCALE"
TWO = {"one.py": "SCALE = 1.0\n", "two.py": "SCALE = 2.0\n"}
FACTORY = """
from cab import Attention
def make(factor):
    class Made(Attention):
        def attend(self, query, key, value, *_):
            return factor * value.mean(2, keepdim=True).expand_as(query)
    return Made
Mine = make(1.0)
"""
CHANGES = [
    # project code outside the attention
    Change("backbone", edits={"backbones/informer.py": ("return output * deviation", "return 3 * output * deviation")}, pool=True),
    Change("layer of the backbone", edits={"backbones/layers/tokens.py": ("import torch\n", "import torch\nX = 1\n")}),
    Change("task", edits={"tasks/lstf/task.py": ("F.mse_loss(", "2 * F.mse_loss(")}),
    Change("generated data", edits={"tasks/lstf/synthetic.py": ("import numpy as np\n", "import numpy as np\nX = 1\n")}),
    Change("loop of the engine", edits={"engines/torch/loop.py": ("loss + auxiliary", "auxiliary + loss")}),
    Change("optimizer", edits={"engines/torch/optimizer.py": ("eps=config.eps", "eps=2 * config.eps")}),
    Change("contract", edits={"cab/attention.py": ("1.0 / math.sqrt", "2.0 / math.sqrt")}),
    Change("padding", edits={"cab/padding.py": ("masked_fill(mask.unsqueeze(-1), 0.0)", "masked_fill(mask.unsqueeze(-1), 0)")}),
    Change("kernel", edits={"attentions/kernels/causal_abc.py": ("import torch\n", "import torch\nX = 1\n")}),
    Change("attention of the other layers", edits={"attentions/softmax.py": ("query @ key.mT * self.scale", "query @ key.mT * 2")}),
    Change("recipe in code", edits={"cab/training.py": ("import torch\n", "import torch\nX = 1\n")}),
    Change("learning rate", edits={"cab/recipe.py": ("(step + 1) / warmup", "(step + 2) / warmup")}),
    Change("construction of layers", edits={"cab/construction.py": ("import math\n", "import math\nX = 1\n")}),
    Change("drawing of batches", edits={"cab/runner/batches.py": ("import torch\n", "import torch\nX = 1\n")}),
    Change("built-in attention", edits={"attentions/abc.py": ("import torch\n", "import torch\nX = 1\n")}),
    # the class
    Change("method", PLAIN, {"user.py": ("1.0 *", "2.0 *")}, pool=True),
    Change("renamed class", {"user.py": mine() + "Other = Mine\n"}, {"user.py": ("Other = Mine", "class Other(Mine): scale = 2")}),
    Change("class made in a function", {"user.py": FACTORY}, {"user.py": ("make(1.0)", "make(0.0)")}),
    Change("class made by type()", {"user.py": mine() + "Mine = type('Mine', (Mine,), {'x': 1.0})\n"}, {"user.py": ("'x': 1.0", "'attend': lambda s, q, *_: q")}),
    Change("class made by exec", {"user.py": f"exec({mine()!r})"}, {"user.py": ("1.0 *", "2.0 *")}),
    Change("generated module", {"user.py": mine("import pathlib\n(pathlib.Path(__file__).parent / 'made.py').write_text(f'SCALE = {1.0}')\nfrom made import SCALE", "SCALE")}, {"user.py": ("{1.0}", "{2.0}")}),
    Change("class re-exported", {"user.py": "from helper import Mine\n", "helper.py": mine()}, {"helper.py": ("1.0 *", "2.0 *")}),
    Change("docstring that the file reads", {"user.py": mine(factor="len(self.attend.__doc__)").replace("*_):\n", "*_):\n        'x'\n")}, {"user.py": ("'x'", "'xx'")}),
    Change("docstring that a helper reads", {"user.py": mine("from helper import length", "length(self.attend)").replace("*_):\n", "*_):\n        'x'\n"), "helper.py": "def length(x): return len(x.__doc__)\n"}, {"user.py": ("'x'", "'xx'")}, expected="declared"),
    # imports
    helper("helper", "from helper import SCALE", pool=True),
    helper("helper by import_module", "import importlib\nSCALE = importlib.import_module('hel' + 'per').SCALE"),
    helper("helper by __import__", "SCALE = __import__('hel' + 'per').SCALE"),
    helper("helper by pkgutil", "import pkgutil\nSCALE = pkgutil.resolve_name('hel' + 'per').SCALE"),
    helper("helper by runpy of a module", "import runpy\nSCALE = runpy.run_module('hel' + 'per')['SCALE']"),
    helper("helper by runpy of a path", "import runpy, pathlib\nSCALE = runpy.run_path(str(pathlib.Path(__file__).parent / 'helper.py'))['SCALE']", expected="declared"),
    helper("helper by spec_from_file_location", "import importlib.util as u, pathlib\ns = u.spec_from_file_location('h', pathlib.Path(__file__).parent / 'helper.py')\nh = u.module_from_spec(s)\ns.loader.exec_module(h)\nSCALE = h.SCALE", expected="declared"),
    helper("exec of a file", EXEC, expected="declared"),
    Change("helper imported while training", {"user.py": lines("from helper import SCALE"), "helper.py": "SCALE = 1.0\n"}, {"helper.py": ("1.0", "2.0")}),
    Change("import_module while training", {"user.py": lines("import importlib; SCALE = importlib.import_module('hel' + 'per').SCALE"), "helper.py": "SCALE = 1.0\n"}, {"helper.py": ("1.0", "2.0")}),
    Change("branch of an import", {"user.py": mine(BRANCH, "SCALE"), **TWO}, {"user.py": ("if os", "if not os")}),
    Change("order of imports", {"user.py": mine("from one import SCALE\nfrom two import SCALE", "SCALE"), **TWO}, {"user.py": ("from one import SCALE\nfrom two import SCALE", "from two import SCALE\nfrom one import SCALE")}),
    Change("helper of a namespace package", {"user.py": mine("from space.helper import SCALE", "SCALE"), "space/helper.py": "SCALE = 1.0\n"}, {"space/helper.py": ("1.0", "2.0")}),
    Change("relative import", {"user.py": "from pack.inner import Mine\n", "pack/__init__.py": "", "pack/inner.py": mine("from .scale import SCALE", "SCALE"), "pack/scale.py": "SCALE = 1.0\n"}, {"pack/scale.py": ("1.0", "2.0")}),
    Change("helpers of one name", {"user.py": mine("from helper import A\nfrom pack.helper import B", "(A + 3 * B)"), "helper.py": "A = 1\n", "pack/helper.py": "B = 2\n"}, {"pack/helper.py": ("2", "5")}),
    Change("folder of links", {"user.py": mine("from linked_helper import SCALE", "SCALE")}, before=lambda f: linked(f, "1.0"), act=lambda f: linked(f, "2.0")),
    Change("module in a zip", {"user.py": mine("import sys, pathlib\nsys.path.insert(0, str(pathlib.Path(__file__).parent / 'lib.zip'))\nfrom zipped_helper import SCALE", "SCALE")}, before=lambda f: zipped(f, "1.0"), act=lambda f: zipped(f, "2.0")),
    Change("bytecode without source", {"user.py": mine("from bare import SCALE", "SCALE")}, before=lambda f: compiled(f, "1.0"), act=lambda f: compiled(f, "2.0")),
    # patches
    Change("patch of another module", {"user.py": mine("import patch"), "patch.py": "import backbones.informer as b\nb.x = 1.0\n"}, {"patch.py": ("1.0", "2.0")}),
    Change("patch after the class", {"user.py": mine() + "import patch\npatch.on(Mine)\n", "patch.py": "def on(c): c.x = 1.0\n"}, {"patch.py": ("1.0", "2.0")}),
    Change("patch by a re-exporting file", {"user.py": "import helper\nhelper.Mine.x = 1.0\nMine = helper.Mine\n", "helper.py": mine()}, {"user.py": ("1.0", "2.0")}),
    Change("patch in __init__", {"user.py": mine() + "    def __init__(self, **k):\n        super().__init__(**k)\n        import patch\n", "patch.py": "import torch\ntorch.x = 1.0\n"}, {"patch.py": ("1.0", "2.0")}),
    Change("sitecustomize", PLAIN, before=lambda f: customized(f, "1.0"), act=lambda f: customized(f, "2.0"), expected="declared"),
    # installed
    Change("module of a plug-in", overrides=("attention=plugged",), before=lambda f: installed(f, "1.0"), act=lambda f: installed(f, "2.0")),
    Change("library in site-packages", {"user.py": mine("from scales import SCALE", "SCALE")}, before=lambda f: library(f, "1.0"), act=lambda f: library(f, "2.0"), expected="declared"),
    # what is read
    Change("data file", {"user.py": mine("import pathlib, json\nSCALE = json.loads((pathlib.Path(__file__).parent / 't.json').read_text())", "SCALE"), "t.json": "1.0"}, {"t.json": ("1.0", "2.0")}, expected="declared"),
    Change("data file in reads", {"user.py": mine() + "    reads = ('t.json',)\n", "t.json": "1.0"}, {"t.json": ("1.0", "2.0")}),
    Change("environment variable", {"user.py": mine("import os\nSCALE = len(os.environ.get('SCALE', '1'))", "SCALE")}, act=lambda _: os.environ.update(SCALE="22"), expected="declared"),
    Change("variable in reads", {"user.py": mine() + "    reads = ('$SCALE',)\n"}, act=lambda _: os.environ.update(SCALE="2")),
    Change("branch by sys.argv", {"user.py": mine("import sys\nif 'x' in sys.argv:\n    from one import SCALE\nelse:\n    from two import SCALE", "SCALE"), **TWO}, act=lambda _: sys.argv.append("x"), expected="declared"),
    # no change
    Change("nothing", expected="same", pool=True),
    Change("nothing in a file", PLAIN, expected="same", pool=True),
    Change("layout and comments", PLAIN, {"user.py": ("import torch\n", "# a comment\nimport torch  # the library\n\n\n")}, expected="same"),
    Change("comments in the project", edits={"backbones/informer.py": ("import torch\n", "import torch  # the library\n")}, expected="same"),
    Change("message of the registry", edits={"cab/registry/options.py": ("has no value", "is missing")}, expected="same"),
    Change("limit of a claim", edits={"cab/claims/__init__.py": ("0.93", "0.94")}, expected="same"),
    Change("table of results", edits={"cab/records/names.py": ("MIXED = ", "X = 1\nMIXED = ")}, expected="same"),
    Change("edited after the import", PLAIN, act=edit_later, expected="same"),
    Change("after another attention", act=run_other("vanilla"), expected="same"),
    Change("after cab verify", act=verify, expected="same"),
    Change("with all plug-ins imported", act=import_all, expected="same"),
    Change("a file with all plug-ins imported", {"user.py": mine("import cab.verification")}, act=import_all, expected="same"),
    Change("helper imported while training, unchanged", {"user.py": lines("import importlib; SCALE = importlib.import_module('hel' + 'per').SCALE"), "helper.py": "SCALE = 1.0\n"}, expected="same"),
    Change("profiled", overrides=(), act=lambda _: PROFILED.append("profile=true"), expected="same"),
]  # fmt: skip
PROFILED: list[str] = []


def configuration(attention: str, folder: Path, seed: int) -> dict[str, Any]:
    """Return a composed configuration."""
    from cab.config.compose import compose

    settings = ["trainer.max_steps=3", "trainer.checkpoint_every=1", *PROFILED]
    return compose([*CELL, f"attention={attention}", f"seed={seed}", f"results_dir={folder}", *settings])
