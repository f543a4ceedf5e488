"""The conformance suite in the tests of another package: a file of three lines, and the workflow of the guide."""

import re
import shlex
from xml.etree import ElementTree

import yaml

from tests.helpers.command import ROOT, cab

GUIDE = (ROOT / "docs/howto/verify-and-debug.md").read_text()
CLASSES = """
from torch import nn

class Sound(nn.Module):
    def __init__(self, embed_dim):
        super().__init__()
        self.linear = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, **masks):
        return self.linear(query)

class Leak(Sound):
    def forward(self, query, **masks):
        return super().forward(query.flip(1))
"""


def run_pytest(tmp_path, *arguments: str, classes: str) -> tuple[int, str]:
    (tmp_path / "gated_mean.py").write_text(classes)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # of no folder above
    options = ("-q", "-rxfEs", "-p", "no:cacheprovider")
    process = cab(*options, *arguments, cwd=tmp_path, module="pytest", PYTHONPATH=str(ROOT))
    return process.returncode, process.stdout


def test_one_item_per_check_and_failures_that_are_expected(tmp_path):
    test = re.findall(r"```python\n# test_gated_mean.py\n(.*?)```", GUIDE, re.DOTALL)[0]
    assert len([line for line in test.splitlines() if line]) == 3
    (tmp_path / "test_sound.py").write_text(test.replace("GatedMean", "Sound").replace("NS NC", "NS CS"))
    (tmp_path / "test_leak.py").write_text(
        "from cab.testing import checks\nfrom gated_mean import Leak\n"
        "reasons = {'lookahead_gradient': 'it looks', 'length_one': 'not so', 'batch_size': 'raises'}\n"
        "test_leak = checks(Leak, patterns='CS', expected=reasons)\n"
    )
    raises = "        assert query.shape[0] != 7\n        return super().forward(query.flip(1))"
    classes = CLASSES.replace("        return super().forward(query.flip(1))", raises)
    sound = "gated_mean and CS and (lookahead or padded_left or decode_steps)"
    chosen = f"({sound}) or (leak and (lookahead or length_one or batch_size))"
    code, output = run_pytest(tmp_path, "-k", chosen, "test_sound.py", "test_leak.py", classes=classes)
    assert code == 1
    assert not re.search(r"FAILED test_sound\.py|NS-", output), output
    assert re.search(r"\d+ failed, \d+ passed, \d+ skipped, \d+ deselected, \d+ xfailed", output), output
    assert "FAILED test_leak.py::test_leak[CS-batch_size]" in output  # an exception is never expected
    assert "XFAIL test_leak.py::test_leak[CS-lookahead_gradient] - it looks" in output
    assert "length_one passes in CS; remove it from `expected` (not so)" in output
    assert re.search(r"Leak CS: output \d+ depends on tokens after \d+|Leak CS: .*lookahead_perturbation", output)


def test_workflow_of_the_guide(tmp_path):
    """The plug-in needs no test file; a class that cannot be called is one failed item."""
    [text] = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    assert len(text.splitlines()) == 8
    steps = yaml.safe_load(text)["jobs"]["verify"]["steps"]
    [command] = [step["run"] for step in steps if step.get("run", "").startswith("pytest ")]
    (tmp_path / "test_gated_mean.py").write_text("raise AssertionError")  # not collected
    needs_mask = "class NeedsMask(Sound):\n    def forward(self, query, mask):\n        return self.linear(query)\n"
    code, output = run_pytest(
        tmp_path,
        *("-p", "no:cab", "-p", "cab.pytest_plugin"),  # also where the entry point is not installed
        *("-k", "lookahead_gradient or float32_kept", "--cab", "gated_mean.py:NeedsMask"),
        *shlex.split(command)[1:],
        classes=CLASSES.replace("Leak", "GatedMean") + needs_mask,
    )
    assert code == 1, output
    assert "2 failed, 1 passed, 1 skipped" in output, output
    assert "cannot run in pattern CS; see the first failed item" in output
    suite = ElementTree.parse(tmp_path / "verify.xml").getroot()[0]
    failed = {case.get("name") for case in suite if case.find("failure") is not None}
    assert {"gated_mean.py:GatedMean[CS-lookahead_gradient]", "gated_mean.py:NeedsMask[CS-float32_kept]"} <= failed
