"""The suite itself: what it accepts, measures and reports, and the guides to failed checks."""

import fnmatch
import re

import pytest
import torch

from cab import UserError
from cab.claims import Claims
from cab.registry.files import load_object
from cab.registry.registries import ATTENTIONS
from cab.verification import verify_attention
from cab.verification.causality import BORDERS, ODD_LENGTHS
from cab.verification.check import CHECKS
from cab.verification.growth import peak_bytes
from tests.cab.verification.planted.mutations import failures
from tests.helpers.command import ROOT, run_python


def test_results_do_not_depend_on_other_checks():
    alone = verify_attention("abc", "CS", checks=["padded_left"], quick=True)
    assert alone[0] in verify_attention("abc", "CS", checks=["padded_right", "padded_left"], quick=True)


def test_borders_of_usual_blocks_are_among_those_looked_at():
    usual = [2**k for k in range(1, 12)] + [3 * 2**k for k in range(10)] + [100, 300, 500, 1000, 1100, 1500, 2000]
    for block in usual:
        assert block <= max(ODD_LENGTHS) // 2 or any(border % block == 0 for border in BORDERS)


def test_peak_memory_is_exact():
    x = torch.ones(1000, 256)

    def call():
        y = x * 2.0  # 1 MiB less 24 KiB
        del y
        a, b = x + 1.0, x + 2.0
        return (a * b).sum()

    assert peak_bytes(call) == pytest.approx(3 * 1000 * 256 * 4, abs=100)


def test_devices_without_float32_are_refused(monkeypatch):
    """As flash attention on CUDA."""
    monkeypatch.setattr(ATTENTIONS.get("flash").cls, "claims", Claims(float32_devices=()))
    with pytest.raises(UserError, match="'flash' does not support float32 on cpu"):
        verify_attention("flash", "NS")


IMPORTS = """
import sys, torch
before = {*sys.modules}
import cab.verification
added = {name.partition(".")[0] for name in {*sys.modules} - before}
print(*sorted(name for name in added - sys.stdlib_module_names if not name.startswith("_sysconfigdata")))
"""


@pytest.mark.slow
def test_the_suite_needs_only_torch():
    shown = run_python("-c", IMPORTS, cwd=ROOT).stdout
    assert shown.split() == ["cab"]


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
