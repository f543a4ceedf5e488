"""The sources that a process executed are kept: of the project, and of installed packages that provide plug-ins."""

import importlib
import sys
from pathlib import Path

import pytest

from cab import executed


@pytest.mark.parametrize("included", ["plugged_package", "plugged_package.attentions", ""])
def test_an_installed_package_is_kept_if_it_has_plug_ins(included, tmp_path, monkeypatch):
    folder = tmp_path / "site-packages" / "plugged_package"
    folder.mkdir(parents=True)
    for name in ("__init__.py", "attentions.py"):
        (folder / name).write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setattr(executed, "_is_kept", dict(executed._is_kept))
    if included:
        executed.include(included)
    try:
        importlib.import_module("plugged_package.attentions")
    finally:
        for name in ("plugged_package", "plugged_package.attentions"):
            sys.modules.pop(name, None)
    kept = {Path(path).name for path in executed.SOURCES if Path(path).parent == folder}
    assert kept == ({"__init__.py", "attentions.py"} if included else set())


def test_a_foreign_module_sees_a_builtin_that_a_test_replaces(tmp_path, monkeypatch):
    (tmp_path / "asking.py").write_text("def ask():\n    return input()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("builtins.input", lambda: "yes")
    try:
        module = importlib.import_module("asking")
        monkeypatch.setattr("builtins.input", lambda: "no")
        assert module.ask() == "no"
    finally:
        sys.modules.pop("asking", None)
