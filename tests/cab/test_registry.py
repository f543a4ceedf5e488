"""What happens to the rest when a module of a plug-in cannot be imported."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cab.errors import UserError
from cab.registry import AttentionEntry, Registry


def test_a_broken_module_takes_no_other_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "plugin_with_a_broken_module"
    (package / "middle").mkdir(parents=True)
    for module in ("__init__", "first", "middle/__init__", "middle/deep", "zlast"):
        (package / f"{module}.py").write_text("")
    (package / "middle/broken.py").write_text("def half(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("mine", package.name, "cab.attentions")
    monkeypatch.setattr("cab.registry.entry_points", lambda group: [point] if group == point.group else [])
    registry: Registry[AttentionEntry] = Registry("attention")
    with pytest.raises(UserError, match=rf"not loaded: module '{package.name}\.middle\.broken'.*SyntaxError"):
        registry.get("anything")
    found = {name for name in sys.modules if name.startswith(package.name)}
    assert {f"{package.name}.{module}" for module in ("first", "middle", "middle.deep", "zlast")} <= found
