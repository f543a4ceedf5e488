"""The guides to failed checks: each check has a cause, and the example of autocast is right."""

from __future__ import annotations

import fnmatch
import re

import pytest

from cab.registry.files import load_object
from cab.verification.check import CHECKS
from tests.helpers.command import ROOT
from tests.cab.verification.planted.mutations import failures

DOCS = ROOT / "docs"


def test_each_check_has_a_cause():
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "reference/checks.md").read_text(), re.MULTILINE)
    patterns = [pattern for row in rows for pattern in re.findall(r"`([\w*]+)`", row)]
    assert [name for name in CHECKS if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not fnmatch.filter(CHECKS, pattern)] == []


@pytest.mark.usefixtures("registers")
def test_float_does_not_help_under_autocast(tmp_path):
    """The example of the guide passes; without the block in which autocast is off, it overflows."""
    guide = (DOCS / "howto/verify-and-debug.md").read_text()
    [example] = re.findall(r"```python\n(# squared_scores.py\n.*?)```", guide, re.DOTALL)
    block = "with torch.autocast(query.device.type, enabled=False):"
    assert block in example
    failed = {}
    for name, code in {"off": example, "on": example.replace(block, "if True:").replace('"squared', '"other')}.items():
        (tmp_path / f"{name}.py").write_text(code)
        failed[name] = failures(load_object(f"{tmp_path}/{name}.py:SquaredScores"), "NS", ["autocast_output"])
    assert failed["off"] == {}
    assert "under torch.float16, NaN or inf values, n=1030" in failed["on"]["autocast_output"]
