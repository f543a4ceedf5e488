"""The hash of an attention's code changes with what is computed, and with nothing else."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cab import code_hash
from cab.attention_files import load_class
from cab.code_hash import attention_hash
from cab.registry import ATTENTIONS
from cab.verified import code_of
from tests.cab.cli.command import ROOT

MINE = '''
    """What it is."""

    import torch
    from beside import SCALE


    class Mine(torch.nn.Module):
        """What it computes."""

        def forward(self, query):
            return query * SCALE
'''


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside.py").write_text("SCALE = 2.0\n")
    (tmp_path / "other.py").write_text("")
    path = tmp_path / "mine.py"
    path.write_text(textwrap.dedent(MINE))
    return path


def hash_of(file):
    return attention_hash("Mine", file, None)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("mine.py", "query * SCALE", "SCALE * query"),
        ("mine.py", "(self, query)", "(self, query, key=None)"),
        ("mine.py", "torch.nn.Module", "torch.nn.Identity"),
        ("mine.py", "from beside import SCALE", "from other import SCALE"),
        ("beside.py", "2.0", "2"),
    ],
)
def test_what_is_computed_changes_it(file, name, old, new):
    before = hash_of(file)
    path = file.parent / name
    path.write_text(path.read_text().replace(old, new))
    assert hash_of(file) != before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("mine.py", "What it computes.", "What it is for."),
        ("mine.py", "import torch\n", "import torch  # the library\n\n"),
        ("mine.py", "query * SCALE", "(query * SCALE)"),
        ("beside.py", "SCALE = 2.0", 'SCALE = 2.0\n"""A factor."""'),
        ("other.py", "", "print('not imported')"),
    ],
)
def test_how_it_is_said_does_not(file, name, old, new):
    before = hash_of(file)
    path = file.parent / name
    path.write_text(path.read_text().replace(old, new, 1))
    assert hash_of(file) == before


def test_place_does_not_count_and_the_class_does(file, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in tmp_path.glob("*.py"):
        shutil.copy(path, elsewhere)
    assert hash_of(elsewhere / "mine.py") == hash_of(file)
    assert attention_hash("Other", file, None) != hash_of(file)


def test_modules_that_import_each_other(file):
    (file.parent / "beside.py").write_text("import mine\nSCALE = 2.0\n")
    assert hash_of(file) == hash_of(file)


def hashes():
    """Of longshort, of vanilla, and of the checks."""
    code_hash.checks_hash.cache_clear()
    return [hash_of_registered("longshort"), hash_of_registered("vanilla"), code_hash.checks_hash()]


def hash_of_registered(name):
    cls = ATTENTIONS.get(name).cls
    return attention_hash(cls.__qualname__, Path(inspect.getfile(cls)), cls.__module__)


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("attentions/kernels/windowed.py", [True, False, False]),
        ("attentions/vanilla.py", [False, True, False]),
        ("cab/attention.py", [True, True, False]),
        ("cab/decoding.py", [True, True, False]),
        ("cab/heads.py", [True, True, False]),
        ("cab/padding.py", [True, True, False]),
        ("cab/learning.py", [True, True, False]),
        ("cab/input_checks.py", [True, True, False]),
        ("cab/memory.py", [False, False, True]),
        ("cab/verification/padding.py", [False, False, True]),
        ("cab/reports/page.py", [False, False, False]),
        ("cab/runner/run.py", [False, False, False]),
        ("cab/registry.py", [False, False, False]),
    ],
)
def test_which_modules_count_in_this_repository(monkeypatch, file, changed):
    """A kernel for those that use it, the base classes for all, reports for none, checks for the checks."""
    assert (ROOT / file).is_file()
    before, read = hashes(), code_hash._read

    def with_a_change(path):
        digest, names = read(path)
        return (f"changed {digest}" if path == ROOT / file else digest), names

    monkeypatch.setattr(code_hash, "_read", with_a_change)
    assert [new != old for new, old in zip(hashes(), before, strict=True)] == changed
    code_hash.checks_hash.cache_clear()


def test_nothing_is_imported():
    program = "import sys; from cab.code_hash import checks_hash; checks_hash(); print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True) == "False\n"


def test_classes_of_packages_and_of_files(file):
    assert code_of(ATTENTIONS.get("vanilla").cls) == hash_of_registered("vanilla")
    assert code_of(load_class(f"{file}:Mine")) == hash_of(file)
    local = type("Local", (), {"__module__": __name__, "__qualname__": "test.<locals>.Local"})
    assert code_of(local) == ""


def test_relative_imports():
    names = code_hash._parsed(b"from . import a\nfrom ..kernels.b import c\nfrom .d import e", "top.below")[1]
    assert {"top.below", "top.below.a", "top.kernels.b", "top.kernels.b.c", "top.below.d"} <= set(names)
