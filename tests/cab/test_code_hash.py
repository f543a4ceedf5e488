"""The hash of an attention's code changes with what is computed, and with nothing else."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from pathlib import Path

import pytest

from cab.records.verified import code_of
from cab.registry import sources as code_hash
from cab.registry.files import load_object
from cab.registry.registries import ATTENTIONS
from cab.registry.sources import attention_hash
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
    """The hash in a new process, which reads every file again."""
    code_hash.read.cache_clear()
    code_hash._file_of.cache_clear()
    return attention_hash("Mine", file, None)


@pytest.mark.parametrize(
    ("name", "old", "new", "changes"),
    [
        ("mine.py", "query * SCALE", "SCALE * query", True),
        ("mine.py", "(self, query)", "(self, query, key=None)", True),
        ("mine.py", "torch.nn.Module", "torch.nn.Identity", True),
        ("mine.py", "from beside import SCALE", "from other import SCALE", True),
        ("beside.py", "2.0", "2", True),
        ("mine.py", "What it computes.", "What it is for.", False),
        ("mine.py", "import torch\n", "import torch  # the library\n\n", False),
        ("mine.py", "query * SCALE", "(query * SCALE)", False),
        ("beside.py", "SCALE = 2.0", 'SCALE = 2.0\n"""A factor."""', False),
        ("other.py", "", "print('not imported')", False),
    ],
)
def test_what_is_computed_changes_it_and_how_it_is_said_does_not(file, name, old, new, changes):
    before = hash_of(file)
    path = file.parent / name
    path.write_text(path.read_text().replace(old, new, 1))
    assert (hash_of(file) != before) == changes


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
        ("attentions/kernels/window_attention.py", [True, False, False]),
        ("attentions/softmax.py", [False, True, False]),
        ("cab/attention.py", [True, True, False]),
        ("cab/padding.py", [True, True, False]),
        ("cab/input_checks.py", [True, True, False]),
        ("cab/verification/padding.py", [False, False, True]),
        ("cab/reports/page.py", [False, False, False]),
        ("cab/registry/registries.py", [False, False, False]),
    ],
)
def test_which_modules_count_in_this_repository(monkeypatch, file, changed):
    """A kernel for those that use it, the base classes for all, reports for none, checks for the checks."""
    assert (ROOT / file).is_file()
    before, read = hashes(), code_hash.read

    def with_a_change(path):
        source = read(path)
        return source._replace(digest=f"changed {source.digest}") if path == ROOT / file else source

    monkeypatch.setattr(code_hash, "read", with_a_change)
    assert [new != old for new, old in zip(hashes(), before, strict=True)] == changed
    code_hash.checks_hash.cache_clear()


def test_classes_of_packages_and_of_files(file):
    assert code_of(ATTENTIONS.get("vanilla").cls) == hash_of_registered("vanilla")
    assert code_of(load_object(f"{file}:Mine")) == hash_of(file)
    local = type("Local", (), {"__module__": __name__, "__qualname__": "test.<locals>.Local"})
    assert code_of(local) == ""


def test_relative_imports():
    source = code_hash._parsed(b"from . import a\nfrom ..kernels.b import c\nfrom .d import e", "top.below")
    assert [item[:2] for item in source.imports] == [("top.below", "a"), ("top.kernels.b", "c"), ("top.below.d", "e")]


def test_a_moved_module_leaves_the_hash(file):
    before = hash_of(file)
    target = file.parent / "below" / "scales.py"
    target.parent.mkdir()
    (file.parent / "beside.py").rename(target)
    file.write_text(file.read_text().replace("from beside import", "from below.scales import"))
    assert hash_of(file) == before


def test_taking_the_same_name_from_another_module_changes_it(file):
    (file.parent / "other.py").write_text("SCALE = 3.0\n")
    file.write_text(file.read_text() + "\nimport other\n")
    before = hash_of(file)
    file.write_text(file.read_text().replace("from beside import SCALE", "import beside\nfrom other import SCALE"))
    assert hash_of(file) != before
