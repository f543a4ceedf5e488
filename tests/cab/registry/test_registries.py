"""The registries: what is known without importing anything, and what happens to the rest when a module is broken."""

import dataclasses
import importlib
import inspect
import sys
from importlib.metadata import EntryPoint

import pytest

from cab.errors import UserError
from cab.registry.entries import AttentionEntry
from cab.registry.outlines import Location, module_specs
from cab.registry.registries import ATTENTIONS, BACKBONES, TASKS, Registry

HEADER = "from cab import Attention, Backbone, register_attention\n"


def test_a_class_that_is_imported_before_its_source_is_read_has_a_file():
    """The hash of its code is that of this file."""
    read = ATTENTIONS.get("vanilla")
    assert read.location.file is not None
    imported = dataclasses.replace(read, imported=read.cls, location=Location(*dataclasses.astuple(read.location)[:2]))
    for entries in ((imported, read), (read, imported)):
        registry: Registry[AttentionEntry] = Registry("attention")
        for entry in entries:
            registry.add(dataclasses.replace(entry, imported=None) if entry is read else entry)
        [found] = registry._entries.values()
        assert (found.imported, found.location.file) == (read.cls, read.location.file)


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A registry that knows one package, made of the given modules and their texts."""

    def make(name, **modules):
        for module, text in {"__init__": "", **modules}.items():
            path = tmp_path / name / f"{module.replace('__in__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        point = EntryPoint("mine", name, "cab.attentions")
        registry: Registry[AttentionEntry] = Registry("attention")
        registries = "cab.registry.registries"
        monkeypatch.setattr(f"{registries}.entry_points", lambda group: [point] if group == point.group else [])
        monkeypatch.setattr(f"{registries}.ATTENTIONS", registry)  # where the decorators of its modules register
        return registry

    return make


def declared(name: str, *, base: str = "Attention", patterns: str = '"NS"', decorator: str = "") -> str:
    decorator = decorator or f'@register_attention("{name}", patterns={patterns}, complexity="n", paper="-")'
    return f"{HEADER}\n{decorator}\nclass {name.capitalize()}({base}):\n    pass\n"


@pytest.mark.parametrize("registry", [ATTENTIONS, BACKBONES, TASKS], ids=lambda registry: registry.kind)
def test_the_index_is_what_importing_everything_registers(registry):
    package = registry.group.removeprefix("cab.")
    index = Registry(registry.kind)
    read = {entry.name: entry for entry in index}
    assert all(entry.imported is None for entry in read.values())
    for spec in module_specs(package):
        importlib.import_module(spec.name)
    registered = {entry.name: entry for entry in registry.load() if entry.location.module.startswith(f"{package}.")}
    assert read == registered
    for name, entry in registered.items():
        file, line = inspect.getsourcefile(entry.cls), inspect.getsourcelines(entry.cls)[1]
        assert (str(read[name].location.file), read[name].location.line) == (file, line)
        assert read[name].cls is entry.cls


def test_a_broken_module_takes_no_other_down(plugin):
    registry = plugin(
        "package_with_broken_modules",
        first=declared("first"),
        middle__in____init__="",
        middle__in__deep=declared("deep"),
        middle__in__broken=f"{declared('broken')}def half(:\n",
        unimportable=f"import no_such_module\n{declared('unimportable')}",
        wrong_base=declared("wrong", base="Backbone"),
        wrong_pattern=declared("pattern", patterns='"XY"'),
        twice=declared("first"),
    )
    with pytest.raises(UserError, match=r"module 'package_with_broken_modules\.middle\.broken': SyntaxError") as error:
        registry.get("anything")
    assert "unknown pattern 'XY'" in str(error.value)
    assert "attention 'first' is registered twice" in str(error.value)
    assert registry.names() == ["deep", "first", "unimportable", "wrong"]
    with pytest.raises(UserError, match=r"'unimportable' .*unimportable.py:4\) cannot be imported.*no_such_module"):
        _ = registry.get("unimportable").cls
    with pytest.raises(UserError, match=r"attention 'wrong' \(.*wrong_base.py:3\) must be a subclass of cab.Attention"):
        _ = registry.get("wrong").cls
    assert [entry.name for entry in registry.load()] == ["deep", "first"]


def test_what_the_text_does_not_show_is_imported(plugin):
    loop = "for name in ('one', 'two'):\n    register_attention(name, patterns='NS', complexity='n', paper='-')(\n"
    loop += "        type(name.capitalize(), (Attention,), {})\n    )\n"
    alias = "from cab import Attention, register_attention as register\n"
    alias += "\n@register('aliased', patterns='NC', complexity='n', paper='-')\nclass Aliased(Attention):\n    pass\n"
    registry = plugin(
        "package_with_computed_names",
        computed=f"PATTERNS = 'NS CS'\n{declared('computed', patterns='PATTERNS')}",
        loop=HEADER + loop,
        alias=alias,
        plain=declared("plain"),
    )
    assert registry.names() == ["aliased", "computed", "one", "plain", "two"]
    assert [str(pattern) for pattern in registry.get("computed").patterns] == ["NS", "CS"]
    assert registry.get("plain").imported is None
    assert "package_with_computed_names.plain" not in sys.modules


def test_a_package_that_only_imports_what_it_registers(plugin):
    plugin("package_of_the_class", inner=declared("elsewhere"))
    registry = plugin("package_of_the_entry_point", __init__="import package_of_the_class.inner\n")
    assert registry.names() == ["elsewhere"]
