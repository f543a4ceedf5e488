"""`cab verify`: names, files, tables, exit statuses."""

import abc
import csv
import io
import re
import sys
import textwrap

import pytest

from cab.cli.main import main
from cab.registry.registries import ATTENTIONS
from tests.helpers.command import ROOT

CHECKS = ["--quick", "--checks", "lookahead_gradient,lookahead_perturbation,lookahead_length,same_seed"]

MINE = '''
    import torch
    from torch import nn
    from scales import SCALE

    class Mean(nn.Module):
        """The mean so far, and what comes after it when `leak` is set."""

        leak = 0.0

        def __init__(self, embed_dim, num_heads):
            super().__init__()
            assert embed_dim % num_heads == 0
            self.value = nn.Linear(embed_dim, embed_dim)

        def forward(self, query, key=None, value=None, *, query_padding_mask=None, key_padding_mask=None):
            v = self.value(query) * SCALE
            mean = v.cumsum(1) / torch.arange(1, v.shape[1] + 1)[:, None]
            return mean + self.leak * v.mean(1, keepdim=True)

    class Leaky(Mean):
        leak = 1e-3
'''


@pytest.fixture
def file(tmp_path):
    (tmp_path / "scales.py").write_text("SCALE = 2.0\n")
    path = tmp_path / "mine_to_verify.py"
    path.write_text(textwrap.dedent(MINE))
    return path


def verify(capsys, *arguments):
    status = main(["verify", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_csv_of_several_patterns(capsys):
    status, out, _ = verify(capsys, "none", "vanilla", "--pattern", "NS,CC", "--checks", "same_seed", "--csv")
    header, *rows = csv.reader(io.StringIO(out))
    assert status == 0
    assert header == ["attention", "pattern", "check", "passed", "detail"]
    pairs = [[name, pattern] for name in ("none", "vanilla") for pattern in ("NS", "CC")]
    assert [row[:4] for row in rows] == [[*pair, "same_seed", "true"] for pair in pairs]


def test_sound_class_in_a_file(capsys, file):
    status, out, err = verify(capsys, f"{file}:Mean", "--pattern", "CS", *CHECKS)
    assert status == 0
    assert out.endswith("4 checks, 0 failed\n")
    assert "decoding is not verified" in err


def test_leak_of_a_thousandth_in_a_file(capsys, file):
    status, out, _ = verify(capsys, f"{file}:Leaky", "--pattern", "CS", *CHECKS)
    assert status == 1
    determinism, causality, headline, number, advice = out.splitlines()
    assert "FAILED" not in determinism
    assert "FAILED lookahead_gradient: " in causality
    assert causality.endswith("; also lookahead_perturbation, lookahead_length")
    assert re.fullmatch(
        r"Leaky CS: causal leak: output (\d+) depends on token (\d+), first in Leaky, after value "
        r"\(lookahead_gradient\); 2 other .*",
        headline,
    )
    assert number == "4 checks, 3 failed"
    assert "`--pattern CS --checks lookahead_gradient`" in advice


def test_registered_class_in_a_file_is_verified_in_what_it_claims(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(ATTENTIONS, "_entries", {entry.name: entry for entry in ATTENTIONS})
    path = tmp_path / "registers.py"
    path.write_text(
        "from attentions.softmax import VanillaAttention\n"
        "from cab import register_attention\n"
        "@register_attention('test_mine', patterns='NS NC', complexity='n^2', paper='-')\n"
        "class Mine(VanillaAttention):\n"
        "    pass\n"
    )
    status, out, _ = verify(capsys, f"{path}:Mine", "--checks", "same_seed", "--csv")
    assert status == 0
    assert [line.split(",")[:2] for line in out.splitlines()[1:]] == [["Mine", "NS"], ["Mine", "NC"]]


def test_a_file_never_replaces_another_module(capsys, tmp_path):
    standard = sys.modules["csv"]
    for folder, name in (("one", "One"), ("two", "Two")):
        path = tmp_path / folder / "csv.py"
        path.parent.mkdir()
        path.write_text(textwrap.dedent(MINE).replace("from scales import SCALE", "SCALE = 1").replace("Mean", name))
        status, _, err = verify(capsys, f"{path}:{name}", "--pattern", "CS", "--checks", "same_seed")
        assert status == 0, err
    assert sys.modules["csv"] is standard


def test_a_file_of_a_registered_package_is_what_the_package_imports(capsys):
    status, out, err = verify(capsys, f"{ROOT}/attentions/abc.py:ABCAttention", "--checks", "same_seed", "--csv")
    assert status == 0, err
    assert {line.split(",")[0] for line in out.splitlines()[1:]} == {"ABCAttention"}
    assert sys.modules["abc"] is abc


def test_options_are_verified(capsys):
    arguments = ["positions=alibi", "window=5", "--pattern", "CS", "--checks", "lookahead_length", "--csv"]
    status, out, err = verify(capsys, "vanilla", *arguments)
    assert status == 0, err
    assert out.splitlines()[1].startswith("vanilla positions=alibi window=5,CS,lookahead_length,true")


def test_options_of_a_part_are_verified_alone_and_in_the_stack(capsys):
    arguments = ["[linear,gla]", "--quick", "--csv", "--pattern", "CS", "--checks", "same_seed"]
    status, out, err = verify(capsys, *arguments, "gla.short_convolution=4")
    assert status == 0, err
    names = [row[0] for row in csv.reader(io.StringIO(out))][1:]
    assert names[-2:] == ["gla short_convolution=4", "linear,gla gla.short_convolution=4"]
