"""The digest of a class changes with every module that it consists of, and with nothing else."""

import itertools
import os
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from cab.errors import UserError
from cab.executed import FOREIGN, SOURCES
from cab.files import python_source
from cab.records.identity import changed_modules
from cab.registry import program as programs
from cab.registry.files import load_object
from cab.registry.program import CAB, can_change_score, code_of, code_of_location, digest_now, libraries, modules_of
from cab.registry.registries import ATTENTIONS
from tests.helpers.command import run_python

MINE = '''
    """What it is."""

    import importlib
    import os

    import torch
    from helper import SCALE
    if os.environ.get("NEVER_SET"):
        from other import OFFSET
    else:
        from helper import OFFSET


    def make(factor):
        class Made(torch.nn.Module):
            def forward(self, query):
                return query * factor

        return Made


    class Mine(torch.nn.Module):
        """What it computes."""

        lazy = importlib.import_module("lazy")

        def forward(self, query):
            return query * SCALE + OFFSET


    class Other(Mine):
        pass


    Made = make(2.0)
'''
FILES = {
    "mine.py": textwrap.dedent(MINE),
    "helper.py": "from deeper import SCALE\nOFFSET = 1.0\n",
    "deeper.py": "SCALE = 2.0\n",
    "lazy.py": "X = 1\n",
    "other.py": "OFFSET = 2.0\n",
}
READER = "import torch\nclass Reader(torch.nn.Module):\n    reads = ('table.json', '$CAB_TEST_VARIABLE')\n"


@pytest.fixture
def write(tmp_path):
    """A function that writes the files, after a replacement in one, into a new folder, and returns mine.py."""
    numbers = itertools.count()

    def written(name="mine.py", old="", new=""):
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        for file, text in FILES.items():
            assert file != name or old in text
            (folder / file).write_text(text.replace(old, new, 1) if file == name and old else text)
        return folder / "mine.py"

    return written


def code(path: Path, name: str = "Mine") -> str:
    return code_of(load_object(f"{path}:{name}"))


@pytest.mark.parametrize(
    ("name", "old", "new", "differs"),
    [
        ("mine.py", "(self, query):\n        return query", "(self, query, key=None):\n        return query", True),
        ("mine.py", "from helper import SCALE", "from deeper import SCALE", True),
        ("mine.py", "    from helper import OFFSET", "    OFFSET = 1.0", True),
        ("mine.py", "make(2.0)", "make(0.0)", True),
        ("mine.py", "class Other", "@staticmethod\ndef patch(): Mine.forward = None\n\n\nclass Other", True),
        ("mine.py", "What it computes.", "What it computes, read from __doc__.", True),
        ("helper.py", "from deeper import SCALE", "SCALE = 2.0", True),
        ("deeper.py", "2.0", "2", True),
        ("deeper.py", "SCALE = 2.0", "SCALE = 1.0\nSCALE = 2.0", True),
        ("lazy.py", "X = 1", "X = 2", True),
        ("other.py", "OFFSET = 2.0", "import deeper\ndeeper.SCALE = 3.0\nOFFSET = 2.0", True),
        ("mine.py", "", "", False),
        ("mine.py", "What it computes.", "What it is for.", False),
        ("mine.py", "import torch\n", "import torch  # the library\n\n", False),
        ("deeper.py", "SCALE = 2.0", 'SCALE = 2.0\n"""A factor."""', False),
    ],
)
def test_a_change_of_the_program_changes_it_and_layout_and_docstrings_do_not(write, name, old, new, differs):
    """Nor does the folder: each copy is in its own, with its own helpers of the same names."""
    assert (code(write(name, old, new)) != code(write())) == differs


def test_each_class_of_a_file_has_its_own(write):
    path = write()
    assert len({code(path, name) for name in ("Mine", "Other", "Made")}) == 3
    assert modules_of([load_object(f"{path}:Mine")]).keys() == FILES.keys()


def test_it_is_the_code_that_was_executed(write):
    """An edit after the import changes nothing, with the same size and time as well."""
    path = write()
    before = code(path)
    path.with_name("deeper.py").write_text("SCALE = 3.0\n")
    path.write_text("an error")
    assert code(path) == before


def test_it_does_not_depend_on_who_first_uses_a_public_name(tmp_path):
    """Names of ``cab`` are imported on first use: by the file, or by another module before it."""
    (tmp_path / "mine.py").write_text("from cab import Attention\nclass Mine(Attention): pass\n")
    program = "from cab.registry.files import load_object; from cab.registry.program import code_of; {}; print({})"
    code = "code_of(load_object('mine.py:Mine'))"
    before = ("import sys", "import attentions.gla; from cab.registry.registries import ATTENTIONS; list(ATTENTIONS)")
    codes = {run_python("-c", program.format(first, code), cwd=tmp_path).stdout for first in before}
    assert len(codes) == 1
    assert codes != {"\n"}


def test_stale_bytecode_is_not_executed(tmp_path):
    """A helper of the same size and time as the one that was compiled."""
    program = "import sys, cab; sys.path.insert(0, '.'); import stale; print(stale.X)"
    for number in "12":
        (tmp_path / "stale.py").write_text(f"X = {number}\n")
        os.utime(tmp_path / "stale.py", (1e9, 1e9))
        if number == "1":
            run_python("-m", "compileall", "-q", "stale.py", cwd=tmp_path)
        assert run_python("-c", program, cwd=tmp_path).stdout.strip() == number


def test_a_class_without_a_file_is_unknown():
    made = type("Made", (), {"__module__": "of_no_file"})
    assert code_of(made) == ""
    assert changed_modules({"of_no_file": programs.UNKNOWN}, {"of_no_file": programs.UNKNOWN}) == ["of_no_file"]


def test_declared_files_and_variables_count(tmp_path, monkeypatch):
    """Those of a base class are found next to its own file."""
    codes = []
    for number, (table, variable) in enumerate([("1", "a"), ("1", "a"), ("2", "a"), ("1", "b")]):
        folder = tmp_path / str(number)
        (folder / "inner").mkdir(parents=True)
        (folder / "inner" / "table.json").write_text(table)
        (folder / "inner" / "__init__.py").write_text(READER)
        (folder / "reader.py").write_text("from inner import Reader\nclass Derived(Reader): pass\n")
        monkeypatch.setenv("CAB_TEST_VARIABLE", variable)
        codes.append(code(folder / "reader.py", "Derived"))
    assert codes[0] == codes[1]
    assert len(set(codes)) == 3


LATE = (
    "import torch\nclass Mine(torch.nn.Module):\n    @staticmethod\n    def factor():\n        {}\n        return {}\n"
)


@pytest.mark.parametrize(
    ("file", "statement", "value"),
    [
        ("of_two.py", "from of_two import F", "F"),
        ("lib_of_two/__init__.py", "import lib_of_two", "lib_of_two.F"),
        ("space_of_two/inner.py", "from space_of_two import inner", "inner.F"),
        ("mailcap.py", "import mailcap", "mailcap.F"),  # the name of a module of Python that is not loaded
    ],
)
@pytest.mark.parametrize("is_late", [False, True])
def test_each_file_executes_the_modules_of_its_own_folder(file, statement, value, is_late, tmp_path, monkeypatch):
    """Also if a file of another folder has imported a module with the same name, and while the layer runs."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    classes, text = [], LATE.format(statement if is_late else "pass", value)
    for factor in (1, 2):
        helper = tmp_path / str(factor) / file
        helper.parent.mkdir(parents=True)
        helper.write_text(f"F = {factor}\n")
        path = tmp_path / str(factor) / "mine.py"
        path.write_text(text if is_late else f"{statement}\n{text}")
        classes.append(load_object(f"{path}:Mine"))
    for _ in range(2):
        assert [each.factor() for each in classes] == [1, 2]
    modules = [modules_of([each]) for each in classes]
    assert all(each.keys() == {"mine.py", file} for each in modules)
    assert modules[0][file] != modules[1][file]
    executed = modules_of(map(Path, FOREIGN), is_running=True)
    assert {"mine.py", file} <= executed.keys()


def test_a_module_of_a_folder_that_was_not_executed_is_refused(tmp_path):
    """A library with its name is loaded; modules of Python that are loaded are used without a question."""
    for name in ("yaml", "json"):
        (tmp_path / f"{name}.py").write_text("F = 1\n")
        (tmp_path / f"of_{name}.py").write_text(f"import torch, {name}\nclass Mine(torch.nn.Module): pass\n")
    assert modules_of([load_object(f"{tmp_path}/of_json.py:Mine")]).keys() == {"of_json.py"}
    with pytest.raises(UserError, match=r"yaml\.py is not used, because Python has loaded .* as yaml: rename it"):
        code(tmp_path / "of_yaml.py")


def test_libraries_of_a_file_are_in_the_program_with_their_versions(tmp_path, monkeypatch):
    """Those that it imports, or that these import in turn; after an upgrade, the version is another digest."""
    site = tmp_path / "site-packages"
    site.mkdir()
    for name, text, dist in (("opsa", "import opsb\n", "opsa"), ("opsb", "", "ops-b"), ("opsc", "", "")):
        (site / f"{name}.py").write_text(text)
        if dist:
            info = site / f"{dist.replace('-', '_')}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
            (info / "RECORD").write_text(f"{name}.py,,\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr("cab.executed.LIBRARIES", found := set[str]())
    monkeypatch.setattr("cab.registry.program.LIBRARIES", found)
    path = tmp_path / "mine.py"
    path.write_text("import torch, opsa\nclass Mine(torch.nn.Module):\n    def late(self): import opsc\n")
    load_object(f"{path}:Mine")().late()
    known = libraries()
    assert (known["library opsa"], known["library ops-b"]) == ("1.0", "1.0")
    assert known["library opsc"] == digest_now("library opsc")
    (site / "opsc.py").write_text("another version")
    assert known["library opsc"] != digest_now("library opsc")
    assert changed_modules({}, {"library opsa": "1.0"}) == ["library opsa"]
    (site / "opsa-1.0.dist-info").rename(site / "opsa-2.0.dist-info")
    (site / "opsa-2.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: opsa\nVersion: 2.0\n")
    assert digest_now("library opsa") == "2.0"


def test_code_is_known_without_importing_it():
    for name in ("abc", "gla", "vanilla"):
        entry = ATTENTIONS.get(name)
        assert code_of_location(entry.location.module, entry.location.qualname) == code_of(entry.cls)


@pytest.mark.parametrize(
    ("module", "counts"),
    [
        ("cab.attention", True), ("cab.runner.batches", True), ("cab.of_an_earlier_version", False),
        ("cab", False), ("cab.claims", False), ("cab.registry.options", False), ("cab.results.index", False),
        ("attentions.abc", True), ("mine.py", True), ("Mine reads $VARIABLE", True),
    ],
)  # fmt: skip
def test_the_position_of_a_module_says_whether_it_can_change_a_score(module, counts):
    assert can_change_score(module) == counts


def test_the_contract_is_not_the_code(tmp_path):
    """A copy of the package, in which modules of ``cab`` differ."""
    program = """
        import sys
        sys.path.insert(0, ".")
        from cab.records.verified import checks_hash
        from cab.registry.program import code_of, contract_of
        cls = type("ABCAttention", (), {"__module__": "attentions.abc"})  # as code_of_location, without torch
        print(code_of(cls), contract_of(cls), checks_hash())
    """
    shutil.copytree(CAB, tmp_path / "cab", ignore=shutil.ignore_patterns("__pycache__"))

    def printed(changes: dict[str, tuple[str, str]]) -> list[str]:
        texts = {tmp_path / "cab" / name: (CAB / name).read_text() for name in changes}
        for (path, text), (old, new) in zip(texts.items(), changes.values(), strict=True):
            assert old in text
            path.write_text(text.replace(old, new))
        found = run_python("-c", textwrap.dedent(program), cwd=tmp_path).stdout.split()
        for path, text in texts.items():
            path.write_text(text)
        return found

    original = printed({})
    message, on_demand = ("has no value", "is missing"), ("MARGIN = 3.0", "MARGIN = 4.0")
    assert printed({"registry/options.py": message, "verification/on_demand/kernels.py": on_demand}) == original
    claim = printed({"claims/__init__.py": ("0.93", "0.94")})
    assert [now == then for now, then in zip(claim, original, strict=True)] == [True, True, False]
    contract = printed({"padding.py": ("import torch\n", "import torch\nX = 1\n")})
    assert [now == then for now, then in zip(contract, original, strict=True)] == [True, False, True]


def test_a_digest_is_of_the_content_whatever_the_time(write, monkeypatch):
    """Also in another process, from the cache; a damaged cache is read as far as it goes."""
    monkeypatch.setenv("CAB_CACHE", str(write().parent / "cache"))
    path = write()
    program = "from pathlib import Path; from cab.registry.program import read; print(read(Path('deeper.py')).digest)"
    before = run_python("-c", program, cwd=path.parent).stdout
    cache = python_source._cache_file()
    assert cache.is_file()
    cache.write_text(cache.read_text() + '["half a li\n')
    stat = path.with_name("deeper.py").stat()
    path.with_name("deeper.py").write_text("SCALE = 3.0\n")
    os.utime(path.with_name("deeper.py"), ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = run_python("-c", program, cwd=path.parent).stdout
    assert before != after != "\n"
    path.with_name("deeper.py").write_text("SCALE = 2.0\n")
    assert run_python("-c", program, cwd=path.parent).stdout == before


def test_modules_are_of_the_project_and_so_are_the_kept_sources():
    modules = modules_of([ATTENTIONS.get("gla").cls])
    assert {"attentions.gla", "attentions.kernels.recurrence", "cab.attention", "cab.padding"} <= modules.keys()
    assert not {name for name in modules if name.startswith(("torch", "cab.cli", "cab.verification"))}
    names = {getattr(module, "__file__", None): name for name, module in list(sys.modules.items())}
    kept = {names[path].partition(".")[0] for path in SOURCES if path in names}
    assert {"cab", "attentions"} <= kept
    assert not kept & {"torch", "numpy", "pytest", "yaml"}


def test_an_import_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "wrong.py").write_text("1 / 0")
    before = set(sys.modules)
    with pytest.raises(UserError, match="ZeroDivisionError"):
        load_object(f"{tmp_path / 'wrong.py'}:Mine")
    assert set(sys.modules) == before


def test_every_executed_module_that_can_change_a_score_is_in_the_program(tmp_path):
    """Compared with all modules of this project that a run has executed."""
    overrides = "task=lstf dataset=synthetic attention=abc pattern=NC preset=smoke trainer.max_steps=1 results_dir=r"
    program = f"""
        import sys
        from cab.config.compose import compose
        from cab.executed import SOURCES
        from cab.runner.run import run_cell
        record = run_cell(compose({overrides.split()})).record
        files = {{getattr(module, "__file__", ""): name for name, module in sys.modules.items()}}
        print(*(files[path] for path in SOURCES if path in files))
        print(*record.program.attention, *record.program.project)
    """
    executed, named = run_python("-c", textwrap.dedent(program), cwd=tmp_path).stdout.splitlines()[-2:]
    missing = {name for name in executed.split() if can_change_score(name)} - set(named.split())
    assert missing == set()
