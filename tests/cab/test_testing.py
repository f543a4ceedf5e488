"""The conformance suite in the tests of another package: a file of three lines, and the workflow of the guide."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from xml.etree import ElementTree

import yaml

from tests.helpers.command import ROOT, cab

GUIDE = (ROOT / "docs/howto/in-your-ci.md").read_text()
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


def run_pytest(tmp_path, test: str, *arguments: str) -> tuple[int, str]:
    (tmp_path / "gated_mean.py").write_text(CLASSES)
    (tmp_path / "test_gated_mean.py").write_text(test)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # of no folder above
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rxfE",
        "-p",
        "no:cacheprovider",
        *arguments,
        "test_gated_mean.py",
    ]
    process = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": f"{ROOT}", "PATH": ""}, capture_output=True, text=True
    )
    return process.returncode, process.stdout


def test_one_item_per_check(tmp_path):
    test = re.findall(r"```python\n# test_gated_mean.py\n(.*?)```", GUIDE, re.DOTALL)[0]
    test = test.replace("GatedMean", "Sound").replace("NS NC", "NS CS")
    assert len(test.split("\n\n")[0].splitlines() + test.split("\n\n")[1].splitlines()) == 3
    code, output = run_pytest(tmp_path, test, "-k", "CS and (lookahead or padded_left or decode_steps)")
    assert code == 0, output
    assert re.search(r"\d+ passed, \d+ skipped", output)


def test_failures_that_are_expected(tmp_path):
    test = (
        "from cab.testing import checks\nfrom gated_mean import Leak\n"
        "test_leak = checks(Leak, patterns='CS', expected={'lookahead_gradient': 'it looks', 'length_one': 'not so'})\n"
    )
    code, output = run_pytest(tmp_path, test, "-k", "lookahead or length_one")
    assert code == 1
    assert "XFAIL test_gated_mean.py::test_leak[CS-lookahead_gradient] - it looks" in output
    assert "length_one passes in CS; remove it from `expected` (not so)" in output
    assert re.search(r"Leak CS: output \d+ depends on tokens after \d+|Leak CS: .*lookahead_perturbation", output)


def test_workflow_of_the_guide(tmp_path):
    [text] = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    assert len(text.splitlines()) == 8
    steps = yaml.safe_load(text)["jobs"]["verify"]["steps"]
    [command] = [step["run"] for step in steps if step.get("run", "").startswith("cab ")]
    (tmp_path / "gated_mean.py").write_text(CLASSES.replace("Leak", "GatedMean"))
    process = cab(*shlex.split(command)[1:], "--checks", "causality,length_one", cwd=tmp_path)
    assert process.returncode == 1, process.stderr
    suite = ElementTree.parse(tmp_path / "verify.xml").getroot()
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert "lookahead_gradient" in failed
    assert {case.get("classname") for case in suite} == {"GatedMean.CS"}
    assert int(suite.get("failures")) == len(failed) < int(suite.get("tests"))
